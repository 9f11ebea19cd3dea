"""The example `deploy/examples/openai`, killed by -9: each payment is booked once, and no turn is committed twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents.memory", reason="openai-agents is not installed: hack/adapters.sh runs these tests")

from dalsegno.testing.memory import CrashPoint, Ended, MemoryGateway
from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall
from openai_world import EXAMPLE, SOURCE, Bank

pytestmark = pytest.mark.skipif(not EXAMPLE.exists(), reason="the package is tested outside of its repository")

PAPER = {"bill": "paper", "to": "Bird & Sons", "cents": 4200}
SCRIPT = [
    Reply("", [ToolCall("find_bill", {"name": "paper"})]),
    Reply("", [ToolCall("pay", PAPER)]),
    Reply("The bill is paid."),
]
NOTE = "paper: 4200 to Bird & Sons"


@pytest.fixture
def bank() -> Iterator[Bank]:
    bank = Bank()
    yield bank
    bank.close()


def run(gateway: MemoryGateway, model: FakeOpenAI, **more: Any) -> Ended:
    return gateway.run([EXAMPLE], environment=model.environment, timeout=300, **more)  # importing the SDK takes seconds


TRACES = """
import dalsegno
from agents.tracing import trace
with dalsegno.attach() as run:
    run.finish(output=type(trace("a trace")).__name__)
"""


def test_the_fake_model_switches_tracing_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_AGENTS_DISABLE_TRACING", raising=False)
    agent = tmp_path / "traces.py"
    agent.write_text(TRACES)
    for environment, kind in (FakeOpenAI.environment_of("http://127.0.0.1:9"), "NoOpTrace"), ({}, "TraceImpl"):
        with MemoryGateway() as gateway:
            ended = gateway.run([agent], environment=environment, timeout=300)
            assert gateway.finish and gateway.finish["output"] == kind, ended.output


def test_an_agent_that_is_killed_in_a_tool_goes_on_without_asking_the_model_again(bank: Bank) -> None:
    with MemoryGateway({"bills": ["paper"], "ledger": bank.url}) as gateway, FakeOpenAI(SCRIPT) as model:

        def kill_once() -> None:
            bank.on_booked = lambda: None
            gateway._processes.kill()

        bank.on_booked = kill_once
        ended = run(gateway, model)
        assert ended.exit_codes == [-signal.SIGKILL, 0], ended.output
        assert gateway.finish and gateway.finish["output"] == "The bill is paid."
        assert list(bank.booked.values()) == [NOTE]
        assert bank.posts == 2, "the tool has run again, under the same key"
        assert len(model.requests) == len(SCRIPT)


CALL = ("calls/*/claim", "calls/*/complete")
REQUESTS = [
    *("attach", *CALL, *CALL, "turns/1"),  # the model, and the tool that looks up the bill
    *(*CALL, *CALL, "turns/2"),  # the model, and the payment
    *(*CALL, "turns/3", "finish"),
]
"""What the agent sends for one bill that needs no approval."""

KINDS = {
    "attach": 0, "model claim": 1, "model answer": 2, "read claim": 3, "read result": 4, "turn": 5,
    "pay claim": 8, "pay result": 9, "finish": 13,
}  # fmt: skip
KILLS = [*((kind, "after") for kind in KINDS), ("pay result", "before")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "side"), KILLS)
def test_a_kill_at_each_kind_of_request_repeats_nothing(bank: Bank, kind: str, side: str) -> None:
    with MemoryGateway({"bills": ["paper"], "ledger": bank.url}) as gateway, FakeOpenAI(SCRIPT) as model:
        ended = run(gateway, model, crash=CrashPoint(KINDS[kind], side))
        begun = gateway.requests[: KINDS[kind] + 1]
        assert begun == REQUESTS[: len(begun)], "the table of this test is about another agent"
        assert ended.exit_codes[0] == -signal.SIGKILL and ended.why == "it has ended", ended.output
        assert list(bank.booked.values()) == [NOTE]
        assert gateway.rows.head is not None and gateway.rows.head["turn"] == 3
        assert gateway.rows.usage == {"tokensIn": 30, "tokensOut": 15, "toolCalls": 2}, "each turn is committed once"
        assert len(model.requests) <= len(SCRIPT) + 1


ROOF = {"bill": "roof", "to": "Slate & Co", "cents": 98000}
LARGE = [Reply("", [ToolCall("pay", ROOF)]), Reply("The roof is paid.")]


@pytest.mark.slow
@pytest.mark.parametrize("request_of_wait", ["waits/*", "park"])
def test_a_kill_while_the_agent_asks_a_person_asks_once(bank: Bank, request_of_wait: str) -> None:
    requests = ["attach", *CALL, "turns/1", "waits/*", "park"]
    with MemoryGateway({"bills": ["roof"], "ledger": bank.url}) as gateway, FakeOpenAI(LARGE) as model:
        ended = run(gateway, model, crash=CrashPoint(requests.index(request_of_wait), "after"))
        assert ended.exit_codes[0] == -signal.SIGKILL, ended.output
        (id,) = gateway.open_waits
        assert ended.why == f"it waits for {id}" and gateway.requests[:5] == requests[:5]
        assert not bank.booked
        gateway.approve(id)
        ended = run(gateway, model)
        assert ended.why == "it has ended", ended.output
        assert list(bank.booked.values()) == ["roof: 98000 to Slate & Co"]
        assert gateway.rows.waits[id].used_by == "2.pay.call_0_0"
        assert len(model.requests) == len(LARGE)


def test_a_process_that_was_replaced_while_it_pays_is_fenced(bank: Bank) -> None:
    """The pod is thought lost while its tool runs. The next attempt ends the run; the old process then writes nothing."""
    with MemoryGateway({"bills": ["paper"], "ledger": bank.url}) as gateway, FakeOpenAI(SCRIPT) as model:
        environment = {**os.environ, **model.environment, "PAY_SECONDS": "600"}
        gateway.start_attempt()
        environment["PYTHONPATH"] = str(SOURCE)
        command = [sys.executable, str(EXAMPLE)]
        old = subprocess.Popen(
            command, env={**environment, **gateway.environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            end = time.monotonic() + 300
            while not any("pay" in call.id for call in gateway.calls):
                assert old.poll() is None and time.monotonic() < end, "the old process has not begun to pay"
                time.sleep(0.05)
            gateway.end_attempt()
            ended = run(gateway, model)
            assert ended.exit_codes == [0] and gateway.finish is not None, ended.output
            # Its next heartbeat tells the old process that it is over, in the middle of its tool.
            output = old.communicate(timeout=300)[0]
        finally:
            old.kill()
        assert "dalsegno: FENCED" in output or "dalsegno: FINISHED" in output, output
        assert list(bank.booked.values()) == [NOTE] and bank.posts == 1
        assert len(model.requests) == len(SCRIPT)
