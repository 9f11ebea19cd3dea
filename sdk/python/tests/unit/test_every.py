"""Several turns in one boundary: what is held back, when it is committed, and what a crash costs."""

from __future__ import annotations

import pytest

import dalsegno
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
