"""Kill -9 before and after every request of an agent: nothing happens twice, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from dalsegno.testing.memory import MemoryGateway, crash_points
from dalsegno.testing.plugin import CrashMatrix
from kills import has_succeeded, survive_kills

AGENTS = Path(__file__).with_name("agents")
SOURCES = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize(
    ("said", "is_over"),
    [
        ("dalsegno: the run is over after turn 5, Succeeded: Completed; --fresh starts a new one", True),
        ("dalsegno: stopped; the run is over", False),
        ("dalsegno: killed by --kill-every", False),
        ("dalsegno: the run is over before its first turn, Failed: Gave up, at last; --fresh starts a new one", None),
    ],
)
def test_only_a_run_that_has_succeeded_has_survived_kills(said: str, is_over: bool | None) -> None:
    with pytest.raises(AssertionError) if is_over is None else nullcontext():
        assert has_succeeded(f"a line, before\n{said}\na line, after") is is_over


class Files:
    """What an agent has done to the world outside of its run."""

    def __init__(self, directory: Path, environment: pytest.MonkeyPatch) -> None:
        self.ledger, self.model = directory / "ledger", directory / "model"
        environment.setenv("LEDGER", str(self.ledger))
        environment.setenv("MODEL", str(self.model))
        self.clear()

    def clear(self) -> None:
        self.ledger.write_text("")
        self.model.write_text("")

    def entries(self, name: str) -> list[object]:
        return [json.loads(line)[name] for line in self.ledger.read_text().splitlines()]

    def times_asked(self) -> int:
        return len(self.model.read_text().splitlines())


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    return Files(tmp_path, monkeypatch)


def test_a_page_is_written_once_and_the_model_is_asked_at_most_once_more(
    crash_matrix: CrashMatrix, files: Files
) -> None:
    points = 0
    for point, gateway, ended in crash_matrix([AGENTS / "pages.py"], input={"pages": 2}, before_each=files.clear):
        points += 1
        assert gateway.finish == {"outcome": "succeeded", "reason": "Completed", "output": {"pages": 2}}, (
            point,
            ended.output,
        )
        assert gateway.state == {"pages": ["entry-1", "entry-2"]}, point
        assert files.entries("page") == [1, 2], point
        assert files.times_asked() <= 2 + (point is not None), point
        assert ended.exit_codes in ([0], [-9, 0], [-9]), (point, ended.output)
        assert (-9 in ended.exit_codes) == (point is not None), (point, ended.exit_codes)
    assert points == 1 + 2 * 12, "attach, two turns of five requests, finish"


def approve(gateway: MemoryGateway) -> None:
    [id] = gateway.open_waits
    gateway.approve(id)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_an_approved_order_is_paid_once(files: Files, every: int) -> None:
    def send_first() -> MemoryGateway:
        files.clear()
        gateway = MemoryGateway()
        gateway.send("hurry")
        return gateway

    whole, killed_after_the_last_approval = 0, 0
    for point, gateway, ended in crash_points(send_first, [AGENTS / "orders.py"], every=every, answer=approve):
        assert ended.why == "it has ended", (point, ended, ended.output)
        assert ended.exit_codes.count(-9) == (point is not None) and {*ended.exit_codes} <= {0, -9}, (point, ended)
        assert files.entries("order") == ["order-1", "order-2"], point
        assert gateway.state == {"receipts": ["receipt for order-1", "receipt for order-2"], "heard": ["hurry"]}, point
        log = [entry["entryId"] for entry in gateway.rows.records["log", "log"]]
        assert log == ["asked-1", "asked-2"], point
        assert [message["taken"] for message in gateway.rows.messages] == [1], point
        if point is None:
            whole = len(gateway.requests)
        elif ended.exit_codes[0] == ended.exit_codes[1] == 0:
            killed_after_the_last_approval += 1
    assert whole > 20 and killed_after_the_last_approval > 0


ASKS = """
import os, pathlib, dalsegno
with dalsegno.attach() as run:
    with run.turn():
        pathlib.Path(os.environ["ASKED"]).write_text("yes")
        run.approval("first", {}, title="First?")
        run.state["granted"] = run.approval("second", {}, title="Second?").granted
    run.finish(output=run.state["granted"])
"""


def test_a_matrix_answers_until_nothing_is_answered(crash_matrix: CrashMatrix, tmp_path: Path) -> None:
    agent, asked = tmp_path / "asks.py", tmp_path / "asked"
    agent.write_text(ASKS)
    variables = {"ASKED": str(asked)}
    _, gateway, ended = next(crash_matrix([agent], environment=variables))
    assert (ended.why, asked.read_text()) == ("it waits for first", "yes"), ended.output
    answered: list[str] = []

    def approve_the_first(gateway: MemoryGateway) -> None:
        answered.extend(gateway.open_waits)
        if gateway.open_waits == ["first"]:
            gateway.approve("first")

    _, gateway, ended = next(crash_matrix([agent], environment=variables, answer=approve_the_first))
    assert (ended.why, ended.exit_codes, answered) == ("it waits for second", [0, 0], ["first", "second"]), ended.output
    points, requests = 0, 0
    for point, gateway, ended in crash_matrix([agent], environment=variables, answer=approve, every=2):
        points, requests = points + 1, requests or len(gateway.requests)
        assert gateway.finish and gateway.finish["output"] is True, (point, ended.output)
        assert ended.exit_codes.count(-9) == (point is not None), (point, ended.exit_codes)
    assert requests > 8 and points == 1 + 2 * ((requests + 1) // 2), "those after an answer are killed too"


def test_the_agent_of_the_guide_outlives_kills_under_dalsegno_dev(files: Files, tmp_path: Path) -> None:
    run = survive_kills(AGENTS / "pages.py", tmp_path, {"pages": 3}, {"MODEL_SECONDS": "0.8"}, interval=2)
    assert run.kills > 0, run.output
    assert files.entries("page") == [1, 2, 3] and files.times_asked() <= run.asked_at_most(3)


def test_sigterm_in_a_turn_drops_it_and_the_next_attempt_replays_it(
    files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    monkeypatch.setenv("HOLD", str(hold))
    path = {"PYTHONPATH": str(SOURCES)}
    with MemoryGateway({"pages": 2}) as gateway:
        gateway.start_attempt()
        agent = subprocess.Popen(
            [sys.executable, str(AGENTS / "pages.py")], env={**os.environ, **path, **gateway.environment}
        )
        try:
            end = time.monotonic() + 60
            while not files.times_asked():
                assert time.monotonic() < end
                time.sleep(0.02)
            agent.send_signal(signal.SIGTERM)
            hold.unlink()  # the signal is handled before the model ends
            assert agent.wait(timeout=60) == 143
        finally:
            agent.kill()
        assert gateway.state == {"pages": ["entry-1"]}, "the turn that was open ends, and no other begins"
        gateway.end_attempt()
        assert gateway.run([AGENTS / "pages.py"]).exit_codes == [0]
    assert files.entries("page") == [1, 2]
