"""Tools: their ids, their policies, their probes, and what a framework sees of them."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import dalsegno
from dalsegno import CallFailed, Diverged, KeyRefused, NotAttached, Refused, Uncertain, tool
from dalsegno.testing.memory import MemoryGateway
from payments import fresh_bank as fresh_bank  # each test begins with an empty bank
from payments import asked, bank, find, pay, raise_crash
from test_turn import Crash, in_process


def test_a_tool_in_a_tool_or_in_a_step_is_refused_before_it_runs(dalsegno_gateway: MemoryGateway) -> None:
    @tool(policy="ask")
    def pay_twice() -> None:
        with pytest.raises(dalsegno.Error, match="'pay' is called inside of a step or of another tool"):
            pay(5)

    with in_process() as run:
        with run.turn() as turn:
            pay_twice()
            turn.step("twice", pay_twice.function)
        run.finish()
    assert bank.entries == []


def test_a_tool_that_changes_nothing_may_be_called_in_another_one(dalsegno_gateway: MemoryGateway) -> None:
    looked: list[str] = []

    @tool(policy="readOnly")
    def look() -> int:
        looked.append("look")
        return 7

    @tool(policy="retrySameKey")
    def book() -> int:
        looked.append("book")
        return look()

    with pytest.raises(Crash), in_process() as run, run.turn():
        book()
        raise Crash
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        with run.turn():
            assert book() == 7
        run.finish()
    assert looked == ["book", "look"]


def test_a_tool_looks_like_its_function_without_the_key() -> None:
    assert str(inspect.signature(pay)) == "(cents: 'int', to: 'str' = 'ann') -> 'str'"
    assert (vars(pay)["__name__"], pay.__doc__, pay.name, pay.policy) == (
        "pay",
        "Pays somebody.",
        "pay",
        "retrySameKey",
    )
    assert "key" not in pay.__annotations__


def test_without_a_run_a_tool_says_so() -> None:
    with pytest.raises(NotAttached, match="with dalsegno.attach"):
        pay(5)


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "probe"},
        {"policy": "ask", "probe": find},
        {"policy": "ask", "name": "a b"},
        {"policy": "ask", "name": ""},
    ],
)
def test_a_tool_that_makes_no_sense_is_an_error_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="^tool "):
        tool(**options)(lambda: None)


@pytest.mark.parametrize("id", ["2024.invoice.7", "before-2.invoice.7", "planned-2.invoice.0123456789ab.0"])
def test_an_id_of_your_own_that_reads_as_that_of_a_turn_is_refused_before_anything_runs(
    dalsegno_gateway: MemoryGateway, id: str
) -> None:
    @tool(policy="retrySameKey", name="invoice", id=lambda number: id)
    def invoice(number: int) -> str:
        raise AssertionError

    with in_process() as run:
        with run.turn(), pytest.raises(ValueError, match=f"the id '{id}' of your own begins with a number"):
            invoice(7)
        run.finish()
    assert dalsegno_gateway.calls == []


def test_the_id_is_of_the_turn_the_name_and_the_content(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        with run.turn():
            pay(5)
            pay(cents=5, to="ann")  # the same payment once more
            pay(6)
        pay(7)
        run.finish()
    ids = [call.id for call in dalsegno_gateway.calls]
    assert all(re.fullmatch(r"(1|before-2)\.pay\.[0-9a-f]{12}\.[01]", id) for id in ids)
    assert ids[1] == ids[0][:-1] + "1" and len({*ids}) == 4 and ids[3].startswith("before-2.")
    run_id = dalsegno_gateway.environment["DALSEGNO_URL"].rpartition("/")[2]
    assert bank.entries == [f"{run_id}:{id}" for id in ids]
    assert dalsegno_gateway.calls[0].arguments == {"cents": 5, "to": "ann"}


def test_a_call_that_died_runs_again_under_its_key(dalsegno_gateway: MemoryGateway) -> None:
    bank.crash = True
    for _ in range(2):
        with pytest.raises(Crash), in_process() as run, run.turn():
            pay(5)
        dalsegno_gateway.start_attempt()
    bank.crash = False
    with in_process() as run, run.turn() as turn:
        assert pay(5) == "receipt 0"
        turn.finish()
    assert len(bank.entries) == 1


def test_a_call_that_raised_keeps_its_key_when_it_is_made_again(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        with run.turn():
            bank.crash = True
            with pytest.raises(Crash):
                pay(5)
            bank.crash = False
            assert pay(5) == "receipt 0"
            assert pay(5) == "receipt 1"
        run.finish()


def test_the_same_id_with_other_arguments_diverges_whether_it_is_over_or_not(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        with pytest.raises(Crash):
            run.call("a", policy="ask", arguments=1, tool=lambda *_: raise_crash())
        with pytest.raises(Diverged):
            run.call("a", policy="ask", arguments=2, tool=lambda *_: 1)
        run.complete("a", "completed", 7)
        assert run.call("b", policy="ask", arguments=1, tool=lambda *_: 1) == 1
        with pytest.raises(Diverged):
            run.call("b", policy="ask", arguments=2, tool=lambda *_: 1)
        assert run.call("b", policy="ask", tool=lambda *_: 2) == 1, "without arguments it is the stored call"
        run.finish()


@pytest.mark.parametrize("refusal", [CallFailed, KeyRefused])
def test_a_refusal_of_the_tool_is_stored_and_raised_again(dalsegno_gateway: MemoryGateway, refusal: Any) -> None:
    runs: list[int] = []

    @tool(policy="retrySameKey")
    def refuses(n: int) -> None:
        runs.append(n)
        raise refusal({"status": n})

    for _ in range(2):
        with pytest.raises(refusal) as raised, in_process() as run, run.turn():
            refuses(422)
        assert raised.value.result == {"status": 422}
        if refusal is KeyRefused:
            dalsegno_gateway.end_attempt()
            assert "held" in dalsegno_gateway.why_no_process
            return
        dalsegno_gateway.start_attempt()
    assert runs == [422]


def test_an_uncertain_call_in_the_same_process_is_not_made_again(dalsegno_gateway: MemoryGateway) -> None:
    bank.crash = True
    with in_process() as run:
        with pytest.raises(Refused), run.turn():
            with pytest.raises(Crash):
                asked(5)
            with pytest.raises(Uncertain):
                asked(5)
        run.complete(dalsegno_gateway.calls[0].id, "failed")
        run.finish()
    assert len(bank.entries) == 1


def test_a_call_of_its_own_id_is_made_once_in_the_whole_run(dalsegno_gateway: MemoryGateway) -> None:
    @tool(policy="retrySameKey", id=lambda order, cents: f"order-{order}")
    def order(order: str, cents: int, *, key: str = "") -> str:
        return bank.pay(key)

    with in_process() as run:
        for _ in range(2):
            with run.turn():
                assert order("a", 5) == "receipt 0"
        with pytest.raises(Diverged), run.turn():
            order("a", 6)
        run.finish()


def test_an_approval_allows_one_call(dalsegno_gateway: MemoryGateway) -> None:
    with pytest.raises(dalsegno.Parked), in_process() as run:
        run.approval("buy", {"cents": 5}, title="Buy?")
    dalsegno_gateway.approve("buy", changes={"cents": 4})
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        answer = run.approval("buy", {"cents": 5}, title="Buy?")
        assert (answer.granted, answer.by, answer.changes, answer.id) == (True, "ann", {"cents": 4}, "buy")
        with run.turn():
            assert pay.approved_by(answer)(4) == "receipt 0"
            with pytest.raises(Refused) as refused:
                pay.approved_by("buy")(5)
            assert refused.value.code == "APPROVAL_SPENT"
            pay(6)
        run.finish()
    assert len(bank.entries) == 2


def test_a_tool_that_is_wrong_about_its_arguments_sends_nothing(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        before = len(dalsegno_gateway.requests)
        for arguments in ([], [1, "a", 3], [{1}]):
            with pytest.raises(TypeError):
                pay(*arguments)
        assert len(dalsegno_gateway.requests) == before
        run.finish()
