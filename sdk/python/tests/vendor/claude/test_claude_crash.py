"""The example deploy/examples/claude, killed by -9 at each kind of its requests, beside another attempt, and by `dalsegno dev`."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("claude_agent_sdk")

from claude_context import EXAMPLE, Ledger
from dalsegno.testing.memory import CrashPoint, MemoryGateway
from dalsegno.testing.models import FakeAnthropic
from kills import survive_kills

pytestmark = pytest.mark.skipif(not EXAMPLE.exists(), reason="the package is tested outside of its repository")

AGENT = str(EXAMPLE / "agent.py")
LIST, PAY = "mcp__accounts__list_invoices", "mcp__accounts__pay_invoice"
NOTES = ['{"number": "A-17", "cents": 12000}', '{"number": "A-18", "cents": 48900}']
EVENTS = [
    {"tool": LIST, "id": "toolu_0_0"},
    {"tool": PAY, "id": "toolu_1_0"},
    {"tool": PAY, "id": "toolu_2_0"},
    {"answer": "Both invoices are paid."},
]
PATH = os.pathsep.join(it for it in sys.path if it)
SECONDS = 300
"""How long anything may take: the CLI starts in seconds on a free machine, and much later on a busy one."""

ASKED = 4
"""How often the model is asked without a crash."""


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger()
    yield ledger
    ledger.close()


@pytest.fixture
def model() -> Iterator[FakeAnthropic]:
    import fake_model

    with FakeAnthropic(fake_model.SCRIPT) as model:
        yield model


class NthRequest:
    """A `CrashPoint` at the n-th request of this name."""

    def __init__(self, gateway: MemoryGateway, name: str, nth: int, side: str) -> None:
        self.gateway, self.name, self.nth, self.side = gateway, name, nth, side

    @property
    def request(self) -> int:
        requests = self.gateway.requests
        matching = [name for name in requests if re.fullmatch(self.name, name)]
        return len(requests) - 1 if re.fullmatch(self.name, requests[-1]) and len(matching) == self.nth else -1


POINTS = [
    ("attach", 1),
    ("records", 4),  # the transcript, before a tool
    (r"calls/\*/claim", 2),
    (r"calls/\*/complete", 2),
    (r"turns/\d+", 2),  # of a call
    (r"turns/\d+", 4),  # of the answer
    ("finish", 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("point", "side"), [*itertools.product(POINTS, ("before", "after")), (None, "")])
def test_the_example_pays_each_invoice_once_wherever_it_is_killed(
    ledger: Ledger, model: FakeAnthropic, point: tuple[str, int] | None, side: str
) -> None:
    with MemoryGateway({"ledger": ledger.url}) as gateway:
        crash = None if point is None else cast(CrashPoint, NthRequest(gateway, *point, side))
        ended = gateway.run([AGENT], environment=model.environment, crash=crash, timeout=SECONDS)
        # A process that is killed after its finish is not missed.
        codes = [0] if point is None else [-9] if (point[0], side) == ("finish", "after") else [-9, 0]
        assert (ended.why, ended.exit_codes) == ("it has ended", codes), ended.output
        assert gateway.finish and gateway.finish["outcome"] == "succeeded"
        assert sorted(ledger.booked.values()) == NOTES
        assert gateway.events == EVENTS, "no turn is committed twice"
        assert ASKED <= len(model.requests) <= ASKED + (point is not None)


def test_the_example_is_killed_in_its_tool_and_does_not_ask_the_model_again(ledger: Ledger, model: FakeAnthropic) -> None:
    with MemoryGateway({"ledger": ledger.url}) as gateway:

        def kill() -> None:
            ledger.on_booked = lambda: None
            gateway._processes.kill()
            time.sleep(0.2)

        ledger.on_booked = kill
        ended = gateway.run([AGENT], environment=model.environment, timeout=SECONDS)
        assert (ended.exit_codes, gateway.events) == ([-9, 0], EVENTS)
        assert (sorted(ledger.booked.values()), ledger.posts, len(model.requests)) == (NOTES, 3, ASKED)


@pytest.mark.slow
def test_the_example_plays_the_model_itself_without_a_key(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with MemoryGateway({"ledger": ledger.url}) as gateway:
        crash = cast(CrashPoint, NthRequest(gateway, r"calls/\*/complete", 3, "before"))
        ended = gateway.run([AGENT], crash=crash, timeout=SECONDS)
        assert (ended.exit_codes, gateway.events) == ([-9, 0], EVENTS)
        assert ended.output.count("claude: I pay the second one.") == 1
        assert sorted(ledger.booked.values()) == NOTES


def start(gateway: MemoryGateway, model: FakeAnthropic) -> subprocess.Popen[str]:
    """Starts the next attempt at the example."""
    gateway.start_attempt()
    variables = {**os.environ, **model.environment, **gateway.environment, "PYTHONPATH": PATH}
    return subprocess.Popen([sys.executable, AGENT], env=variables, text=True, stdout=-1, stderr=subprocess.STDOUT)


class Hold:
    """Holds the first payment, between the effect and the answer, until `release`."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.held, self.release = ledger, threading.Event(), threading.Event()
        ledger.on_booked = self._on_booked

    def _on_booked(self) -> None:
        self.ledger.on_booked = lambda: None
        self.held.set()
        self.release.wait(SECONDS)


def test_the_writes_of_an_attempt_that_was_replaced_are_all_refused(ledger: Ledger, model: FakeAnthropic) -> None:
    hold = Hold(ledger)
    with MemoryGateway({"ledger": ledger.url}) as gateway:
        old = start(gateway, model)
        assert hold.held.wait(SECONDS), "the first attempt pays"
        new = start(gateway, model)
        out, _ = new.communicate(timeout=SECONDS)
        assert new.returncode == 0, out
        stored = str(gateway.rows.records)
        hold.release.set()
        out, _ = old.communicate(timeout=SECONDS)
        assert old.returncode != 0 and "FENCED" in out
        assert str(gateway.rows.records) == stored
        assert (gateway.events, sorted(ledger.booked.values())) == (EVENTS, NOTES)
        assert len(model.requests) == ASKED


def test_sigterm_lets_the_tool_end_and_the_next_attempt_goes_on(ledger: Ledger, model: FakeAnthropic) -> None:
    hold = Hold(ledger)
    with MemoryGateway({"ledger": ledger.url}) as gateway:
        process = start(gateway, model)
        assert hold.held.wait(SECONDS)
        process.terminate()
        time.sleep(0.5)
        hold.release.set()
        out, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 143, out
        assert [call.state for call in gateway.calls] == ["completed", "completed"]
        gateway.end_attempt()
        assert gateway.run([AGENT], environment=model.environment, timeout=SECONDS).exit_codes == [0]
        assert (gateway.events, ledger.posts, len(model.requests)) == (EVENTS, 2, ASKED)


@pytest.fixture
def program() -> str:
    """The program `dalsegno`."""
    if "DALSEGNO_BIN" not in os.environ:
        pytest.skip("DALSEGNO_BIN names no `dalsegno`: nothing runs the example against a real gateway")
    return os.environ["DALSEGNO_BIN"]


def test_a_real_gateway_kills_the_example_again_and_again(
    ledger: Ledger, model: FakeAnthropic, tmp_path: Path
) -> None:
    input = {"ledger": ledger.url, "toolSeconds": 3, "approve": True}
    run = survive_kills(EXAMPLE / "agent.py", tmp_path, input, model.environment, r"claude\.")
    assert run.kills > 0 and run.approved == 2, run.output
    assert sorted(ledger.booked.values()) == NOTES
    assert len(model.requests) <= run.asked_at_most(ASKED)


def test_at_a_real_gateway_a_person_decides_on_each_payment(
    program: str, ledger: Ledger, model: FakeAnthropic, tmp_path: Path
) -> None:
    (tmp_path / "input").write_text(json.dumps({"ledger": ledger.url, "approve": True}))
    command = [program, "dev", "--input", "input", "--", sys.executable, AGENT]
    variables = {**os.environ, **model.environment, "PYTHONPATH": PATH}
    with (tmp_path / "log").open("w") as log:
        dev = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=log, stderr=log)
    try:
        for wait, paid in (("claude.toolu_1_0", 0), ("claude.toolu_2_0", 1)):
            end = time.monotonic() + SECONDS
            while subprocess.run([program, "dev", "approve", wait], cwd=tmp_path, capture_output=True).returncode != 0:
                assert time.monotonic() < end and dev.poll() is None, (tmp_path / "log").read_text()
                assert len(ledger.booked) <= paid, "nothing is paid without an approval"
                time.sleep(0.2)
        assert dev.wait(SECONDS) == 0, (tmp_path / "log").read_text()
    finally:
        dev.kill()
    assert sorted(ledger.booked.values()) == NOTES
    assert len(model.requests) == ASKED
