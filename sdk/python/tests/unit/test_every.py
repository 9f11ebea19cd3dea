"""Several turns in one boundary: what is held back, when it is committed, and what a crash costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dalsegno
from dalsegno import Operation
from dalsegno.testing.memory import MemoryGateway
from test_turn import Crash, in_process, pay


def count(gateway: MemoryGateway) -> int:
    """How many boundaries were committed."""
    return sum(request.startswith("turns/") for request in gateway.requests)


def test_every_third_turn_is_committed_and_the_last_ones_with_the_finish(dalsegno_gateway: MemoryGateway) -> None:
    with in_process(every=3) as run:
        while run.next_turn <= 8:
            with run.turn() as turn:
                run.state["last"] = turn.number
                turn.event(turn.number)
                turn.spent(tool_calls=1)
        run.finish()
    assert count(dalsegno_gateway) == 3 and dalsegno_gateway.rows.head is not None
    assert dalsegno_gateway.rows.head["turn"] == 3, "the gateway counts boundaries"
    assert (dalsegno_gateway.state, dalsegno_gateway.events) == ({"last": 8}, [*range(1, 9)])
    assert dalsegno_gateway.rows.usage == {"toolCalls": 8} and dalsegno_gateway.finish


def test_a_crash_repeats_the_turns_that_were_held_back_and_no_call_of_theirs(dalsegno_gateway: MemoryGateway) -> None:
    asked: list[int] = []

    def loop(crash_at: int) -> None:
        with in_process(every=3) as run:
            while run.next_turn <= 6:
                with run.turn() as turn:
                    run.state[str(turn.number)] = [
                        turn.step("draft", lambda n: asked.append(n), turn.number),
                        pay(turn.number),
                    ]
                    if turn.number == crash_at:
                        raise Crash
            run.finish()

    with pytest.raises(Crash):
        loop(5)
    assert dalsegno_gateway.state.keys() == {"1", "2", "3"}
    dalsegno_gateway.start_attempt()
    loop(0)
    assert [*dalsegno_gateway.state] == [str(n) for n in range(1, 7)]
    assert asked == [1, 2, 3, 4, 5, 6] and len(dalsegno_gateway.calls) == 12


def test_a_turn_that_raises_takes_back_only_itself(dalsegno_gateway: MemoryGateway) -> None:
    with in_process(every=9) as run:
        with run.turn():
            run.state["n"] = 1
        with pytest.raises(Crash), run.turn():
            run.state["n"] = 2
            raise Crash
        assert (run.state, run.next_turn, count(dalsegno_gateway)) == ({"n": 1}, 2, 0)
        run.finish()
    assert dalsegno_gateway.state == {"n": 1}


def test_a_suspend_and_a_wait_commit_what_is_held_back(dalsegno_gateway: MemoryGateway) -> None:
    with pytest.raises(dalsegno.Suspended), in_process(every=9) as run:
        with run.turn():
            run.state["n"] = 1
        dalsegno_gateway.suspend()
        run.suspending = True
        with run.turn():
            raise AssertionError
    assert dalsegno_gateway.state == {"n": 1}
    dalsegno_gateway.suspend(on=False)
    dalsegno_gateway.start_attempt()
    with pytest.raises(dalsegno.Parked), in_process(every=9) as run:
        assert run.next_turn == 2
        with run.turn():
            run.state["n"] = 2
        with run.turn() as turn:
            assert turn.number == 3
            run.state["n"] = 3
            run.approval("w", 1, title="Go on?")
    assert dalsegno_gateway.state == {"n": 2}
    dalsegno_gateway.approve("w")
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        assert (run.next_turn, run.state) == (3, {"n": 2}), "the number of turns outlives a change of `every`"
        with run.turn() as turn:
            run.state["n"] = turn.number
        run.commit(run.next_turn, state={"n": 4}, finish={"outcome": "succeeded"})
    assert dalsegno_gateway.state == {"n": 4} and dalsegno_gateway.rows.channels["dalsegno.turns"] == {
        "value": {"json": 4}
    }


def test_a_plan_commits_what_is_held_back_before_it(dalsegno_gateway: MemoryGateway) -> None:
    with pytest.raises(Crash), in_process(every=9) as run:
        for _ in range(2):
            with run.turn() as turn:
                turn.event(turn.number)
        with run.turn() as turn:
            run.state["plan"] = 3
            turn.plan()
            raise Crash
    assert dalsegno_gateway.events == [1, 2]
    dalsegno_gateway.start_attempt()
    with in_process(every=9) as run:
        assert (run.next_turn, run.planned, run.state) == (3, True, {"plan": 3})
        with run.turn() as turn:
            turn.finish()
    assert dalsegno_gateway.rows.head and dalsegno_gateway.rows.head["boundary"] == "result"


@pytest.mark.parametrize(
    "fill",
    [
        lambda turn: [turn.event(n) for n in range(600)],
        lambda turn: turn.record(*(Operation.put("s", f"{turn.number}-{n}", n) for n in range(600))),
        lambda turn: turn.event("x" * (9 << 20)),
        lambda turn: [turn.record(Operation.put("s", f"{turn.number}-{n}", "x" * (3 << 20))) for n in range(3)],
    ],
)
def test_turns_that_do_not_fit_into_one_boundary_get_two(
    dalsegno_gateway: MemoryGateway, fill: Callable[[Any], object]
) -> None:
    with in_process(every=9) as run:
        for held_at_end in 1, 1, 2:
            with run.turn() as turn:
                if turn.number != 3:
                    fill(turn)
                run.state["n"] = turn.number
            assert run._held == held_at_end
        assert (count(dalsegno_gateway), dalsegno_gateway.state) == (1, {"n": 1})
        run.finish()
    assert dalsegno_gateway.state == {"n": 3} and run.next_turn == 4


def test_a_state_that_does_not_fit_beside_held_turns_gets_a_boundary_of_its_own(
    dalsegno_gateway: MemoryGateway,
) -> None:
    with in_process(every=9) as run:
        with run.turn() as turn:
            turn.event("x" * (9 << 20))
        with run.turn():
            run.state["n"] = "x" * (9 << 20)
        assert (count(dalsegno_gateway), len(dalsegno_gateway.events)) == (1, 1)
        run.finish()
    assert len(dalsegno_gateway.state["n"]) == 9 << 20


def test_messages_that_do_not_fit_into_one_boundary_get_two(dalsegno_gateway: MemoryGateway) -> None:
    with in_process(every=9) as run:
        for held_at_end in 1, 1:
            for number in range(600):
                dalsegno_gateway.send(number)
            with run.turn() as turn:
                assert len(turn.take_messages()) == 600
            assert run._held == held_at_end
        assert count(dalsegno_gateway) == 1
        run.finish()
    assert {message["taken"] for message in dalsegno_gateway.rows.messages} == {1, 2}


def test_a_turn_that_is_too_large_by_itself_is_refused_and_holds_nothing_up(dalsegno_gateway: MemoryGateway) -> None:
    with in_process(every=9) as run:
        with run.turn():
            run.state["n"] = 1
        with pytest.raises(dalsegno.Refused, match="TOO_LARGE"), run.turn() as turn:
            run.state["n"] = 2
            turn.event("x" * (17 << 20))
        with run.turn() as turn:
            assert (turn.number, run.state) == (2, {"n": 1})
            run.state["n"] = 2
        run.finish()
    assert dalsegno_gateway.state == {"n": 2}


def test_a_plan_after_a_plan_whose_turn_is_held_back(dalsegno_gateway: MemoryGateway) -> None:
    with in_process(every=9) as run:
        for number in 1, 2, 3:
            with run.turn() as turn:
                run.state["planned"] = number
                turn.plan()
                run.state["done"] = number
        run.finish()
    assert dalsegno_gateway.state == {"planned": 3, "done": 3} and run.next_turn == 4


@pytest.mark.parametrize("forgets", [0, 2, 3])
def test_an_attempt_may_commit_more_often_than_the_one_before(dalsegno_gateway: MemoryGateway, forgets: int) -> None:
    def loop(every: int, crash_at: int = 0, forgets: int = 0) -> None:
        with in_process(every=every) as run:
            while run.next_turn <= 3:
                with run.turn() as turn:
                    if turn.number != forgets:
                        pay(turn.number)
                    if turn.number == crash_at:
                        raise Crash
            run.finish()

    with pytest.raises(Crash):
        loop(every=3, crash_at=3)
    dalsegno_gateway.start_attempt()
    if forgets:
        with pytest.raises(dalsegno.Diverged, match=rf"'{forgets}\.pay"):
            loop(every=1, forgets=forgets)
        assert dalsegno_gateway.rows.head and dalsegno_gateway.rows.head["turn"] == forgets - 1
    else:
        loop(every=1)
        assert dalsegno_gateway.finish and len(dalsegno_gateway.calls) == 3


def dies(key: str, arguments: Any) -> None:
    raise Crash


def die_in_a_call(gateway: MemoryGateway) -> None:
    """The outcome of a call is unknown, and a new attempt has started."""
    with pytest.raises(Crash), in_process() as run:
        run.call("a", policy="probe", tool=dies)
    gateway.start_attempt()


def test_a_limit_does_not_fail_on_a_call_of_an_earlier_attempt(dalsegno_gateway: MemoryGateway) -> None:
    die_in_a_call(dalsegno_gateway)
    with pytest.raises(dalsegno.AtLimit), in_process(every=9) as run:
        with run.turn():
            run.state["n"] = 1
        run.at_limit = True
        run.check()
    assert count(dalsegno_gateway) == 0, "what is held back is dropped"


@pytest.mark.parametrize("of_earlier_attempt", [False, True])
def test_sigterm_with_an_open_call_drops_what_is_held_back(
    dalsegno_gateway: MemoryGateway, of_earlier_attempt: bool
) -> None:
    if of_earlier_attempt:
        die_in_a_call(dalsegno_gateway)
    with pytest.raises(dalsegno.Stopping), in_process(every=9) as run:
        with run.turn():
            run.state["n"] = 1
        if not of_earlier_attempt:
            with pytest.raises(Crash):
                run.call("a", policy="ask", tool=dies)
        run._termination._received.put(None)
        run.check()
    assert count(dalsegno_gateway) == 0
