"""Turns: what they commit, what they take back, and what an interrupted turn is answered from the store."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import dalsegno
from dalsegno import Diverged, Operation, Refused, Run, attach
from dalsegno.testing.memory import MemoryGateway


def in_process(**options: Any) -> Run[Any]:
    """This process as the worker, without a signal handler and without heartbeats."""
    return attach(heartbeat=False, sigterm=False, **options)


@dalsegno.tool(policy="retrySameKey")
def pay(cents: int, *, key: str = "") -> str:
    return f"{cents} under {key}"


class Crash(Exception):
    """An agent that dies: what it has not committed is lost."""


def test_a_turn_commits_the_state_and_all_that_it_was_given(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        with run.turn() as turn:
            run.state["n"] = 1
            turn.event({"said": "a"})
            turn.spent(tokens_in=5)
            turn.spent(tokens_in=2, cost_micro_usd=9)
            turn.record(Operation.put("s", "k", 1))
        assert (turn.number, run.next_turn, run.head and run.head.turn) == (1, 2, 1)
        run.finish(output=run.state)
    assert (dalsegno_gateway.state, dalsegno_gateway.events) == ({"n": 1}, [{"said": "a"}])
    assert dalsegno_gateway.rows.usage == {"tokensIn": 7, "costMicroUSD": 9}
    assert [*dalsegno_gateway.rows.records] == [("s", "k")]
    assert dalsegno_gateway.finish == {"outcome": "succeeded", "reason": "Completed", "output": {"n": 1}}


def test_a_turn_that_raises_commits_nothing_and_takes_the_state_back(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        with run.turn():
            run.state["kept"] = [1]
        for number in range(2):
            with pytest.raises(Crash), run.turn() as turn:
                run.state["kept"].append(2)
                turn.event("lost")
                raise Crash
            assert (run.state, run.next_turn, turn.number) == ({"kept": [1]}, 2, 2), number
        run.finish()
    assert (dalsegno_gateway.events, dalsegno_gateway.state) == ([], {"kept": [1]})


def test_a_turn_whose_commit_is_refused_takes_the_state_back(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        with pytest.raises(TypeError, match="a value of the type set cannot be written as JSON"), run.turn():
            run.state["n"] = {1}
        with pytest.raises(Refused) as refused, run.turn() as turn:
            run.state["n"] = 1
            turn.record(Operation.put("", "k", 1))
        assert (refused.value.code, run.state, run.next_turn) == ("INVALID", {}, 1)
        run.finish()


def test_one_turn_is_open_at_a_time(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        with run.turn(), pytest.raises(RuntimeError, match="a turn is open"), run.turn():
            pass
        run.finish()


def test_a_run_is_not_finished_in_an_open_turn(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        with run.turn() as turn:
            run.state["n"] = 1
            with pytest.raises(RuntimeError, match="a turn is open: use `turn.finish`"):
                run.finish()
            with pytest.raises(RuntimeError, match="a turn is open"):
                run.commit(1, finish={"outcome": "succeeded"})
            turn.finish()
    assert dalsegno_gateway.state == {"n": 1} and dalsegno_gateway.finish


def test_a_call_before_a_turn_is_another_one_than_the_same_call_in_it(dalsegno_gateway: MemoryGateway) -> None:
    def calls(run: Run[Any]) -> list[str]:
        before = [pay(5), pay(5)]
        with run.turn() as turn:
            inside = [pay(5), pay(5)]
            if not dalsegno_gateway.rows.head and run.attempt == 1:
                raise Crash
        after = [pay(5)]
        assert turn.number == 1
        return before + inside + after

    with pytest.raises(Crash), in_process() as run:
        calls(run)
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        assert len({*calls(run)}) == 5
        run.finish()
    ids = [call.id.split(".") for call in dalsegno_gateway.calls]
    assert [(id[0], id[-1]) for id in ids] == [
        ("before-1", "0"),
        ("before-1", "1"),
        ("1", "0"),
        ("1", "1"),
        ("before-2", "0"),
    ]


def test_a_call_before_a_turn_is_the_same_one_when_the_turn_failed(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        for crashes in True, False:
            pay(5)
            try:
                with run.turn():
                    if crashes:
                        raise Crash
            except Crash:
                pass
        run.finish()
    assert len(dalsegno_gateway.calls) == 1


def test_an_interrupted_turn_asks_no_step_and_runs_no_tool_again(dalsegno_gateway: MemoryGateway) -> None:
    asked: list[int] = []

    def model(question: int) -> dict[str, Any]:
        asked.append(question)
        return {"answer": (question, 2)}

    results: list[Any] = []
    for attempt in 1, 2:
        with pytest.raises(Crash), in_process() as run:
            with run.turn() as turn:
                results.append([turn.step("draft", model, n) for n in range(2)] + [pay(5), pay(5), pay(6)])
                raise Crash
        dalsegno_gateway.start_attempt()
    assert results[0] == results[1] and asked == [0, 1]
    assert results[0][0] == {"answer": [0, 2]}, "as JSON gives it back, the first time too"
    ids = [call.id for call in dalsegno_gateway.calls]
    assert ids[:2] == ["1.draft.0", "1.draft.1"] and len(set(ids)) == 5
    assert [id.rpartition(".")[2] for id in ids[2:]] == ["0", "1", "0"], "the second payment of 5 is another one"
    assert all(id.startswith("1.pay.") for id in ids[2:])


@dataclasses.dataclass
class Answer:
    text: str
    sources: list[str]


def test_a_step_gives_back_the_type_that_its_function_returns(dalsegno_gateway: MemoryGateway) -> None:
    def model() -> Answer:
        return Answer("a", ["b"])

    for _ in range(2):
        with pytest.raises(Crash), in_process() as run, run.turn() as turn:
            assert turn.step("draft", model) == Answer("a", ["b"])
            raise Crash
        dalsegno_gateway.start_attempt()


def test_a_step_that_failed_is_the_same_step_when_it_is_asked_again(dalsegno_gateway: MemoryGateway) -> None:
    tries: list[int] = []

    def model() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise Crash
        return "second"

    with in_process() as run:
        with run.turn() as turn:
            with pytest.raises(Crash):
                turn.step("draft", model)
            assert turn.step("draft", model) == "second"
        run.finish()
    assert [(call.id, call.state) for call in dalsegno_gateway.calls] == [("1.draft.0", "completed")]


def test_a_call_that_the_next_attempt_does_not_make_is_no_silent_loss(dalsegno_gateway: MemoryGateway) -> None:
    with pytest.raises(Crash), in_process() as run, run.turn():
        pay(5)
        raise Crash
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        with pytest.raises(Diverged, match=r"an earlier try of this turn made the call '1\.pay"), run.turn():
            pay(6)
        [paid] = run.completed_calls
        with run.turn():
            run.accept(paid["id"])
            pay(6)
        run.finish()
    assert dalsegno_gateway.finish


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("over", [False, True])
def test_a_turn_that_is_tried_again_in_the_same_process_forgets_no_effect(
    dalsegno_gateway: MemoryGateway, replayed: bool, over: bool
) -> None:
    def call(key: str, cents: int) -> int:
        if not over:
            raise Crash
        return cents

    def turn_of(run: Run[Any], id: str) -> None:
        with run.turn():
            run.call(id, policy="retrySameKey", arguments=5, tool=call)
            raise Crash

    if replayed:
        with pytest.raises(Crash), in_process() as run:
            turn_of(run, "own")
        dalsegno_gateway.start_attempt()
    run = in_process()
    with pytest.raises(Crash):
        turn_of(run, "own")
    with run:
        with pytest.raises(Diverged, match="'own'"), run.turn():
            pay(6)
        over = True
        with run.turn():
            pay(6)
            assert run.call("own", policy="retrySameKey", arguments=5, tool=call) == 5
        with run.turn():
            pass
        run.finish()


def test_what_was_done_before_a_failed_turn_need_not_be_done_again(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        with run.turn():
            pay(1)
        pay(2)
        with pytest.raises(Crash), run.turn():
            pay(3)
            raise Crash
        with run.turn():
            pay(3)
        run.finish()


def test_an_effect_that_was_accepted_need_not_be_made_again(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        with pytest.raises(Crash), run.turn():
            pay(1)
            raise Crash
        run.accept(dalsegno_gateway.calls[0].id)
        with run.turn():
            pay(2)
        run.finish()


def test_a_plan_is_where_the_next_attempt_begins(dalsegno_gateway: MemoryGateway) -> None:
    with pytest.raises(Crash), in_process() as run, run.turn() as turn:
        run.state["plan"] = "pay"
        turn.event("planned")
        turn.plan()
        assert turn.planned
        run.state["plan"] = "lost"
        raise Crash
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        assert (run.state, run.planned, run.next_turn) == ({"plan": "pay"}, True, 1)
        with run.turn() as turn:
            assert turn.planned
            turn.event("done")
            turn.finish("failed", reason="Stuck", message="no money", output=7)
    assert dalsegno_gateway.events == ["planned", "done"]
    assert dalsegno_gateway.finish == {"outcome": "failed", "reason": "Stuck", "message": "no money", "output": 7}


@pytest.mark.parametrize("where", ["another process", "the same process", "no crash"])
def test_what_is_done_behind_a_plan_is_not_what_was_done_before_it(
    dalsegno_gateway: MemoryGateway, where: str
) -> None:
    answers = iter(["before", "behind"])
    dalsegno_gateway.send("first")

    def turn_of(run: Run[Any], crashes: bool) -> None:
        with run.turn() as turn:
            if not turn.planned:
                assert (turn.step("draft", lambda: next(answers)), pay(5)) == ("before", pay_under("1.pay"))
                assert [message.value for message in turn.take_messages()] == ["first"]
                turn.plan()
                dalsegno_gateway.send("second")
                if crashes:
                    raise Crash
            assert (turn.step("draft", lambda: next(answers)), pay(5)) == ("behind", pay_under("planned-1.pay"))
            assert [message.value for message in turn.take_messages()] == ["second"]
            turn.finish()

    def pay_under(place: str) -> str:
        [call] = [call for call in dalsegno_gateway.calls if call.id.startswith(f"{place}.")]
        return f"5 under {call.key}"

    with in_process() as run:
        if where != "no crash":
            with pytest.raises(Crash):
                turn_of(run, crashes=True)
        if where == "another process":
            dalsegno_gateway.start_attempt()
            run._lease.ended = True
        else:
            turn_of(run, crashes=False)
    if where == "another process":
        with in_process() as run:
            turn_of(run, crashes=False)
    assert dalsegno_gateway.finish and len({call.key for call in dalsegno_gateway.calls}) == 6


def test_the_messages_of_a_turn_are_the_same_after_a_crash(dalsegno_gateway: MemoryGateway) -> None:
    dalsegno_gateway.send("one")
    with pytest.raises(Crash), in_process() as run, run.turn() as turn:
        assert [message.value for message in turn.take_messages()] == ["one"]
        raise Crash
    dalsegno_gateway.send("two")
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        for expected in ["one"], ["two"], []:
            with run.turn() as turn:
                assert [message.value for message in turn.take_messages()] == expected
        run.finish()
    assert [message["taken"] for message in dalsegno_gateway.rows.messages] == [1, 2]


def test_after_a_rewind_steps_are_asked_anew_and_effects_are_not(dalsegno_gateway: MemoryGateway) -> None:
    answers = iter(["first", "second"])
    with in_process() as run, run.turn() as turn:
        first = turn.step("draft", lambda: next(answers)), pay(5)
        turn.finish()
    dalsegno_gateway.rows.finish = dalsegno_gateway.rows.finished_by = None
    dalsegno_gateway.rewind(0)
    dalsegno_gateway.start_attempt()
    with in_process() as run, run.turn() as turn:
        second = turn.step("draft", lambda: next(answers)), pay(5)
        turn.finish()
    assert (first[0], second[0], first[1] == second[1]) == ("first", "second", True)


def test_leaving_without_an_end_is_an_error(dalsegno_gateway: MemoryGateway) -> None:
    with pytest.raises(dalsegno.Error, match="the agent ended without `run.finish`"), in_process() as run:
        with run.turn():
            run.state["n"] = 1
    assert dalsegno_gateway.state == {"n": 1}
