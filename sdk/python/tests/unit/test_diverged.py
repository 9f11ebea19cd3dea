"""Effects that a later try of a turn does not make: on no way is their turn committed without them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import dalsegno
from dalsegno import Diverged, Run
from dalsegno._ordinals import Place, place_of, tool_of
from dalsegno.testing.memory import MemoryGateway
from test_every import count
from test_turn import Crash, in_process, pay


def own(run: Run[Any], id: str) -> Any:
    """A call under an id of the user's own."""
    return run.call(id, policy="retrySameKey", tool=lambda key, _: key)


def interrupted(gateway: MemoryGateway, turns: int, effect: Callable[[Run[Any], int], Any]) -> None:
    """An attempt that holds its turns back, makes an effect in each, and dies in the last one. The next one begins."""
    with pytest.raises(Crash), in_process(every=9) as run:
        for number in range(1, turns + 1):
            with run.turn():
                effect(run, number)
                if number == turns:
                    raise Crash
    gateway.start_attempt()


def plan(run: Run[Any]) -> None:
    with run.turn() as turn:
        turn.plan()


WAYS: dict[str, Callable[[Run[Any]], object]] = {
    "the finish": lambda run: run.finish(),
    "a boundary of its own": lambda run: run.commit(run.next_turn, state={}),
    "a park": lambda run: run.park(),
    "a wait": lambda run: run.approval("w", 1, title="Go on?"),
    "a plan": plan,
    "the end of the agent": lambda run: None,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_held_turn_that_forgot_an_effect_is_committed_in_no_way(dalsegno_gateway: MemoryGateway, way: str) -> None:
    interrupted(dalsegno_gateway, 1, lambda run, number: pay(number))
    with pytest.raises(Diverged, match=r"'1\.pay"), in_process(every=9) as run:
        with run.turn():
            pass
        WAYS[way](run)
    assert count(dalsegno_gateway) == 0
    dalsegno_gateway.start_attempt()
    with in_process(every=9) as run:
        with run.turn():
            pay(1)
        run.finish()
    assert dalsegno_gateway.finish and len(dalsegno_gateway.calls) == 1


@pytest.mark.parametrize("makes_it", [True, False])
def test_what_commits_held_turns_in_an_open_turn_leaves_its_calls_to_its_end(
    dalsegno_gateway: MemoryGateway, makes_it: bool
) -> None:
    interrupted(dalsegno_gateway, 2, lambda run, number: own(run, f"own-{number}"))
    with in_process(every=9) as run:
        with run.turn():
            own(run, "own-1")
        turn = run.turn()
        turn.__enter__()
        run.park()
        assert count(dalsegno_gateway) == 1
        if makes_it:
            own(run, "own-2")
            turn.finish()
            turn.__exit__(None, None, None)
        else:
            turn.finish()
            with pytest.raises(Diverged, match="'own-2'"):
                turn.__exit__(None, None, None)
            run._lease.ended = True
    assert (dalsegno_gateway.finish is not None) is makes_it


def test_a_turn_that_raised_has_to_repeat_its_effects_after_a_commit_in_it_too(dalsegno_gateway: MemoryGateway) -> None:
    with in_process(every=9) as run:
        with run.turn():
            pass
        with pytest.raises(Crash), run.turn():
            own(run, "own")
            run.park()
            raise Crash
        assert count(dalsegno_gateway) == 1
        with pytest.raises(Diverged, match="'own'"), run.turn() as turn:
            turn.finish()
        with run.turn() as turn:
            own(run, "own")
            turn.finish()


@pytest.mark.parametrize("id", ["invoice.2024", "2024.invoice", "2.invoice", "before-2.invoice", "2.invoice.0"])
def test_a_number_in_an_id_of_your_own_is_no_turn(dalsegno_gateway: MemoryGateway, id: str) -> None:
    interrupted(dalsegno_gateway, 1, lambda run, number: own(run, id))
    with pytest.raises(Diverged, match=re.escape(f"'{id}'")), in_process() as run, run.turn():
        pass
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        with run.turn():
            own(run, id)
        with run.turn() as turn:
            turn.finish()


@pytest.mark.parametrize(("every", "in_turn"), [(1, True), (9, True), (9, False)])
def test_a_run_that_ends_earlier_than_before_forgets_no_effect(
    dalsegno_gateway: MemoryGateway, every: int, in_turn: bool
) -> None:
    def two_turns(run: Run[Any]) -> None:
        for number in 1, 2:
            with run.turn() as turn:
                pay(number)
                if number == 2 and in_turn:
                    turn.finish()
        if not in_turn:
            run.finish()

    interrupted(dalsegno_gateway, 3, lambda run, number: pay(number))
    with pytest.raises(Diverged, match=r"'3\.pay"), in_process(every=every) as run:
        two_turns(run)
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        run.accept(*(call.id for call in dalsegno_gateway.calls if call.id.startswith("3.")))
        while run.next_turn <= 2:
            with run.turn() as turn:
                pay(turn.number)
        run.finish()
    assert dalsegno_gateway.finish


def test_a_run_may_end_after_a_turn_that_raised(dalsegno_gateway: MemoryGateway) -> None:
    """The effects of that turn are in the store, and this process has made them itself."""
    interrupted(dalsegno_gateway, 2, lambda run, number: (pay(number), own(run, f"own-{number}")))
    with in_process(every=9) as run:
        with run.turn():
            pay(1)
            own(run, "own-1")
        with pytest.raises(Crash), run.turn():
            pay(2)
            own(run, "own-2")
            raise Crash
        run.finish("failed", reason="Stuck")
    assert dalsegno_gateway.finish and dalsegno_gateway.finish["outcome"] == "failed"


def test_what_came_before_a_plan_is_not_required_behind_it(dalsegno_gateway: MemoryGateway) -> None:
    """Neither what the turns before it did that the plan's boundary has committed."""
    with pytest.raises(Crash), in_process(every=9) as run:
        for _ in range(2):
            with run.turn() as turn:
                pay(turn.number)
                own(run, f"own-{turn.number}")
        pay(3)
        with run.turn() as turn:
            pay(4)
            own(run, "own-4")
            turn.plan()
            raise Crash
    dalsegno_gateway.start_attempt()
    with in_process(every=9) as run, run.turn() as turn:
        assert (turn.number, turn.planned) == (3, True)
        turn.finish()


EFFECTS: dict[str, Callable[[Run[Any]], object]] = {"pay": lambda run: pay(1), "own": lambda run: own(run, "own")}


@pytest.mark.parametrize("in_process_of_its_own", [True, False])
@pytest.mark.parametrize("name", EFFECTS)
def test_a_plan_that_forgot_an_effect_before_it_is_not_committed(
    dalsegno_gateway: MemoryGateway, name: str, in_process_of_its_own: bool
) -> None:
    """Behind the plan nobody could tell that the effect was forgotten."""
    run = in_process()
    with pytest.raises(Crash), run.turn():
        EFFECTS[name](run)
        raise Crash
    if in_process_of_its_own:
        run._leave()
        dalsegno_gateway.start_attempt()
        run = in_process()
    with run:
        with pytest.raises(Diverged, match=name), run.turn() as turn:
            turn.plan()
        assert dalsegno_gateway.rows.head is None
        with run.turn() as turn:
            EFFECTS[name](run)
            turn.plan()
            turn.finish()
    assert len(dalsegno_gateway.calls) == 1


def test_a_plan_requires_nothing_of_what_comes_behind_it(dalsegno_gateway: MemoryGateway) -> None:
    interrupted(dalsegno_gateway, 2, lambda run, number: (pay(number), own(run, f"own-{number}")))
    with in_process(every=9) as run:
        with run.turn() as turn:
            pay(1)
            own(run, "own-1")
            turn.plan()
        with pytest.raises(Crash), run.turn() as turn:
            pay(2)
            turn.plan()
            own(run, "own-2")
            pay(3)
            raise Crash
        with run.turn() as turn:
            assert turn.planned
            own(run, "own-2")
            pay(3)
            turn.finish()
    assert dalsegno_gateway.finish and len(dalsegno_gateway.calls) == 5


def test_what_was_made_behind_a_plan_is_required(dalsegno_gateway: MemoryGateway) -> None:
    with pytest.raises(Crash), in_process() as run, run.turn() as turn:
        turn.plan()
        pay(1)
        raise Crash
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        with pytest.raises(Diverged, match=r"'planned-1\.pay"), run.turn() as turn:
            pass
        with run.turn() as turn:
            pay(1)
            turn.finish()


def test_a_boundary_of_its_own_is_not_checked_and_neither_is_the_turn_after_it(dalsegno_gateway: MemoryGateway) -> None:
    interrupted(dalsegno_gateway, 1, lambda run, number: own(run, "own"))
    with in_process() as run:
        run.commit(1, state={"n": 1})
        with run.turn() as turn:
            turn.finish()


def test_an_unsettled_call_of_a_closed_turn_is_not_required_again(dalsegno_gateway: MemoryGateway) -> None:
    with pytest.raises(Crash), in_process() as run, run.turn():
        run.call("own", policy="retrySameKey", tool=lambda *_: dies())
    for _ in range(2):
        dalsegno_gateway.start_attempt()
        run = in_process()
        with pytest.raises(Crash), run:
            if run.next_turn == 1:
                run.accept("own")
            with run.turn():
                pass
            raise Crash
    dalsegno_gateway.start_attempt()
    with in_process() as run, run.turn() as turn:
        assert [call["id"] for call in run.unsettled_calls] == ["own"]
        turn.finish()


def dies() -> None:
    raise Crash


def test_a_call_with_other_arguments_leaves_the_stored_one_as_it_was(dalsegno_gateway: MemoryGateway) -> None:
    def ask(arguments: int) -> None:
        run.call("a", policy="probe", arguments=arguments, tool=lambda *_: dies())

    with pytest.raises(Crash), in_process() as run:
        ask(1)
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        with pytest.raises(Diverged):
            ask(2)
        assert not run._calls.has_open()
        with pytest.raises(dalsegno.Uncertain):
            ask(1)
        run.settle("a", "failed", "looked")
        run.finish()


def test_a_call_that_was_settled_in_a_turn_that_raised_is_over_and_is_not_forgotten(
    dalsegno_gateway: MemoryGateway,
) -> None:
    with pytest.raises(Crash), in_process() as run, run.turn():
        run.call("a", policy="probe", tool=lambda *_: dies())
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        with pytest.raises(Crash), run.turn():
            run.settle("a", "completed", "looked", 7)
            raise Crash
        assert run.recover() == []
        with pytest.raises(Diverged, match="'a'"), run.turn():
            pass
        with run.turn() as turn:
            assert run.call("a", policy="probe", tool=lambda *_: dies()) == 7
            turn.finish()


def test_a_call_that_a_probe_has_ended_is_over_also_if_its_turn_raises(dalsegno_gateway: MemoryGateway) -> None:
    asked: list[int] = []

    def probe(cents: int) -> str:
        asked.append(cents)
        return "found"

    @dalsegno.tool(policy="probe", probe=probe)
    def order(cents: int) -> str:
        raise Crash

    with pytest.raises(Crash), in_process() as run, run.turn():
        order(5)
    dalsegno_gateway.start_attempt()
    with in_process(every=9) as run:
        with pytest.raises(Crash), run.turn():
            assert order(5) == "found"
            raise Crash
        assert run.recover() == [] and asked == [5]
        with run.turn():
            assert order(5) == "found"
        run.finish()
    assert asked == [5]


@pytest.mark.parametrize("is_committed", [False, True], ids=["the turn was open", "the turn was committed"])
def test_after_a_rewind_no_call_of_an_undone_turn_has_to_be_made(dalsegno_gateway: MemoryGateway, is_committed: bool) -> None:
    """The guide of rewinds puts the branch into the ids of bookings, so that they are made anew."""
    with pytest.raises(Crash), in_process() as run:
        with run.turn():
            pass
        with run.turn():
            own(run, f"book.{run.branch}")
            pay(5)
            if not is_committed:
                raise Crash
        raise Crash
    dalsegno_gateway.rewind(1)
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        with run.turn() as turn:
            own(run, f"book.{run.branch}")
            turn.finish()
    assert {"book.0", "book.1"} <= dalsegno_gateway.rows.calls.keys()


def test_after_a_rewind_a_call_that_was_in_flight_behind_a_plan_stops_no_plan(dalsegno_gateway: MemoryGateway) -> None:
    def order(run: Run[Any], key: str) -> Any:
        if run.branch == 0:
            raise Crash
        return key

    def agent(run: Run[Any]) -> None:
        with run.turn() as turn:
            turn.plan()
            run.call("order-2", policy="retrySameKey", tool=lambda key, _: order(run, key))
            turn.finish()

    with pytest.raises(Crash), in_process() as run:
        with run.turn():
            pass
        agent(run)
    dalsegno_gateway.rewind(1)
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        run.adopt()
        agent(run)
    assert dalsegno_gateway.finish is not None


@pytest.mark.parametrize(
    ("id", "tool", "place"),
    [
        ("7.pay.0123456789ab.0", None, Place(7, False)),
        ("before-7.pay.more.0123456789ab.12", None, Place(7, False)),
        ("planned-7.pay.0123456789ab.0", None, Place(7, True)),
        ("7.pay.0123456789ab.in-01234567.3", None, Place(7, False)),
        ("7.pay.call_1", "pay", Place(7, False)),
        ("planned-7.pay.call_1", "pay", Place(7, True)),
        ("7.pay.call_1", None, None),
        ("7.pay.call_1", "payment", None),
        ("7.pay.0123456789ab.0", "payment", None),
        ("7.pay.call_1.0123456789ab.in-01234567", "pay", Place(7, False)),
        ("7.pay.0123456789ab", None, None),
        ("2024.invoice", "invoice", None),
        ("own", None, None),
    ],
)
def test_the_place_in_an_id_that_the_client_has_made(id: str, tool: str | None, place: Place | None) -> None:
    assert place_of(id, tool) == place


def test_the_tool_of_an_id_that_the_client_has_made() -> None:
    assert tool_of("before-7.pay.more.0123456789ab.12") == "pay.more" and tool_of("7.pay.call_1") is None
    assert tool_of("7.pay.0123456789ab.in-01234567.3") is None, "an adapter has made it"
