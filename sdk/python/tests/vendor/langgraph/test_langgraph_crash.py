"""The refund desk is killed at each kind of its requests, and in the middle of a tool."""

from __future__ import annotations

import os
import re
import signal

import pytest

pytest.importorskip("langgraph")
pytest.importorskip("langchain_openai")

from dalsegno.testing.memory import CrashPoint
from langgraph_support import Desk

LETTERS = ("The scope of A-2 is broken.",)
PAID = [{"order": "A-2", "cents": 48900}]
ANSWERS = ["About A-2: refunded 48900 cents of A-2"]
STEPS = list(range(-1, 8))
MODEL_REQUESTS = 3

KINDS = ("attach", "records", "turns", "calls/*/claim", "calls/*/complete", "waits/*", "park", "finish")


def requests_of_one_run() -> list[str]:
    with Desk(*LETTERS) as desk:
        assert [code for ended in desk.run() for code in ended.exit_codes] == [0, 0]
        assert_done_once(desk)
        assert len(desk.model.requests) == MODEL_REQUESTS
        return list(desk.gateway.requests)


def assert_done_once(desk: Desk) -> None:
    finish = desk.gateway.finish
    assert finish and finish["output"] == {"answers": ANSWERS}
    assert desk.ledger.notes == PAID
    assert desk.steps == STEPS


@pytest.fixture(scope="module")
def requests() -> list[str]:
    return requests_of_one_run()


@pytest.mark.slow
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_a_request_repeats_no_effect_no_turn_and_one_question_at_most(
    requests: list[str], kind: str, side: str
) -> None:
    last = max(at for at, name in enumerate(requests) if re.fullmatch(re.escape(kind) + r"(/\d+)?", name))
    with Desk(*LETTERS) as desk:
        codes = [code for ended in desk.run(CrashPoint(last, side)) for code in ended.exit_codes]
        assert codes.count(-signal.SIGKILL) == 1, "the process was killed there"
        assert_done_once(desk)
        assert MODEL_REQUESTS <= len(desk.model.requests) <= MODEL_REQUESTS + 1


def test_a_kill_in_a_tool_repeats_the_tool_with_its_key_and_asks_the_model_nothing() -> None:
    with Desk("My order A-1 never came.") as desk:

        def kill() -> None:
            desk.ledger.on_entry = lambda: None
            os.kill(desk.gateway._processes._process.pid, signal.SIGKILL)  # type: ignore[union-attr]

        desk.ledger.on_entry = kill
        (ended,) = desk.run()
        assert ended.exit_codes == [-signal.SIGKILL, 0]
        assert [*desk.ledger.attempts.values()] == [2], "the second attempt sent the same key again"
        assert desk.ledger.notes == [{"order": "A-1", "cents": 1900}]
        assert len(desk.model.requests) == MODEL_REQUESTS
        assert desk.steps == STEPS
