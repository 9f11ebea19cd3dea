"""What an agent waits for, on a gateway in memory: each wait parks, and the next attempt gets the answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import dalsegno
from dalsegno import Run
from dalsegno.testing.memory import MemoryGateway
from test_turn import in_process


def park(gateway: MemoryGateway, wait: Callable[[Run[Any]], object]) -> None:
    """An agent waits, parks, and leaves."""
    with pytest.raises(dalsegno.Parked) as left, in_process() as run:
        wait(run)
    assert left.value.code == 0 and "waits for" in left.value.message
    assert "it waits for" in gateway.why_no_process


def resume(gateway: MemoryGateway, wait: Callable[[Run[Any]], Any]) -> Any:
    """The next attempt waits again, and gets the answer."""
    gateway.start_attempt()
    with in_process() as run:
        answer = wait(run)
        run.finish()
    return answer


def test_an_approval(dalsegno_gateway: MemoryGateway) -> None:
    def ask(run: Run[Any]) -> dalsegno.Approval:
        return run.approval("buy", {"cents": 5}, title="Buy?", expires=timedelta(hours=1))

    park(dalsegno_gateway, ask)
    assert dalsegno_gateway.open_waits == ["buy"]
    dalsegno_gateway.deny("buy", reason="no")
    answer = resume(dalsegno_gateway, ask)
    assert (answer.granted, answer.reason, answer.timed_out) == (False, "no", False)


def test_an_approval_that_expires(dalsegno_gateway: MemoryGateway) -> None:
    def ask(run: Run[Any]) -> dalsegno.Approval:
        return run.approval("buy", {"cents": 5}, title="Buy?", expires=3_600)

    park(dalsegno_gateway, ask)
    dalsegno_gateway.advance(3_601)
    assert resume(dalsegno_gateway, ask).timed_out


def test_a_time(dalsegno_gateway: MemoryGateway) -> None:
    def sleep(run: Run[Any]) -> dalsegno.Answer:
        return run.sleep("night", datetime.now(timezone.utc) + timedelta(hours=8))

    park(dalsegno_gateway, sleep)
    dalsegno_gateway.advance(8 * 3_600 + 1)
    assert resume(dalsegno_gateway, sleep).outcome == "elapsed"


def test_messages_of_a_topic_are_taken_by_the_turn(dalsegno_gateway: MemoryGateway) -> None:
    def two(run: Run[Any]) -> list[Any]:
        with run.turn():
            return [message and message.value for message in (run.message("price"), run.message("price"))]

    park(dalsegno_gateway, two)
    dalsegno_gateway.send("noise", "other")
    dalsegno_gateway.send("5 euro", "price")
    dalsegno_gateway.start_attempt()
    park(dalsegno_gateway, two)
    dalsegno_gateway.send("6 euro", "price")
    assert resume(dalsegno_gateway, two) == ["5 euro", "6 euro"]
    assert [message.get("taken") for message in dalsegno_gateway.rows.messages] == [None, 1, 1]


def test_a_message_that_does_not_come_in_time_is_none(dalsegno_gateway: MemoryGateway) -> None:
    def hear(run: Run[Any]) -> Any:
        return run.message("price", id="price-7", expires=60)

    park(dalsegno_gateway, hear)
    dalsegno_gateway.advance(61)
    assert resume(dalsegno_gateway, hear) is None


def test_a_rate_limit_is_a_new_wait_each_time(dalsegno_gateway: MemoryGateway) -> None:
    reset = datetime.now(timezone.utc) + timedelta(seconds=90)
    park(dalsegno_gateway, lambda run: run.rate_limit("anthropic", reset_time=reset))
    dalsegno_gateway.advance(91)
    dalsegno_gateway.start_attempt()
    park(dalsegno_gateway, lambda run: run.rate_limit("anthropic"))
    assert [*dalsegno_gateway.rows.waits] == ["before-1.rateLimit.0.1", "before-1.rateLimit.0.2"]


def test_lingering_gets_a_quick_answer_without_a_park(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        soon = datetime.now(timezone.utc) + timedelta(seconds=0.2)
        assert run.sleep("soon", soon, linger=30).outcome == "elapsed"
        run.finish()
    assert "park" not in dalsegno_gateway.requests


def test_any_of_two_waits_ends_a_park(dalsegno_gateway: MemoryGateway) -> None:
    with pytest.raises(dalsegno.Parked), in_process() as run:
        run.wait("price", "message", topic="price")
        run.wait("buy", "approval", title="Buy?", proposal=1)
        run.commit(1, state={"n": 1}, park=["price", "buy"], mode="any")
    dalsegno_gateway.approve("buy")
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        assert {id: wait.answer is not None for id, wait in run.waits.items()} == {"price": False, "buy": True}
        run.finish()


@pytest.mark.parametrize(
    ("ask", "left", "code"),
    [("suspend", dalsegno.Suspended, 0), ("cancel", dalsegno.Cancelled, 0), ("reach_limit", dalsegno.AtLimit, 0)],
)
def test_a_turn_begins_only_if_nobody_wants_the_process_to_leave(
    dalsegno_gateway: MemoryGateway, ask: str, left: type[dalsegno.Leave], code: int
) -> None:
    getattr(dalsegno_gateway, ask)()
    with pytest.raises(left) as leaving, in_process() as run, run.turn():
        raise AssertionError
    assert leaving.value.code == code and isinstance(leaving.value, SystemExit)
    dalsegno_gateway.end_attempt()
    assert dalsegno_gateway.why_no_process


def test_a_suspend_that_was_lifted_is_no_reason_to_leave(dalsegno_gateway: MemoryGateway) -> None:
    dalsegno_gateway.suspend()
    with in_process() as run:
        dalsegno_gateway.suspend(on=False)
        run.suspend()
        assert not run.suspending
        run.finish()


def test_a_message_in_a_turn_is_another_one_than_the_message_before_it(dalsegno_gateway: MemoryGateway) -> None:
    dalsegno_gateway.send("one")
    dalsegno_gateway.send("two")
    with in_process() as run:
        before = run.message()
        with run.turn() as turn:
            inside = run.message()
            turn.finish()
    assert before and inside and (before.value, inside.value) == ("one", "two")
