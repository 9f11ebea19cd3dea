"""Tools: their ids, their policies, their probes, and what a framework sees of them."""

from __future__ import annotations

import contextvars
import inspect
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

import dalsegno
from dalsegno import CallFailed, Diverged, KeyRefused, NotAttached, Operation, Refused, Uncertain, _usage, tool
from dalsegno._transport import Transport
from dalsegno.testing.memory import MemoryGateway
from test_turn import Crash, in_process


class Bank:
    """A ledger that a test looks at, and a crash after its effect."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.crash = False

    def pay(self, key: str) -> str:
        if key not in self.entries:
            self.entries.append(key)
        if self.crash:
            raise Crash
        return f"receipt {self.entries.index(key)}"


bank = Bank()


@pytest.fixture(autouse=True)
def fresh_bank() -> None:
    bank.__init__()  # type: ignore[misc]


@tool(policy="retrySameKey", name="pay")
def pay(cents: int, to: str = "ann", *, key: str = "") -> str:
    """Pays somebody."""
    return bank.pay(key)


def find(cents: int, *, key: str) -> str:
    if key not in bank.entries:
        raise CallFailed
    return f"found {cents}"


@tool(policy="probe", probe=find)
def probed(cents: int, *, key: str = "") -> str:
    return bank.pay(key)


@tool(policy="ask")
def asked(cents: int, *, key: str = "") -> str:
    return bank.pay(key)


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


@pytest.mark.parametrize("took_effect", [True, False])
def test_a_probe_finds_out(dalsegno_gateway: MemoryGateway, took_effect: bool) -> None:
    bank.crash = True
    with pytest.raises(Crash), in_process() as run, run.turn():
        probed(5)
    bank.crash = False
    if not took_effect:
        bank.entries.clear()
    for attempt in range(2):
        dalsegno_gateway.start_attempt()
        with pytest.raises(Crash), in_process() as run, run.turn():
            assert probed(5) == ("found 5" if took_effect else "receipt 0"), attempt
            raise Crash
    assert len(bank.entries) == 1
    assert [call.state for call in dalsegno_gateway.calls] == ["completed"]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("took_effect", [True, False])
def test_recover_brings_a_probed_call_to_its_end_so_that_records_are_accepted(
    dalsegno_gateway: MemoryGateway, took_effect: bool, in_turn: bool, version: int
) -> None:
    bank.crash = True
    with pytest.raises(Crash), in_process() as run:
        run._transport._contract = version
        with run.turn() if in_turn else nullcontext():
            probed(5)
    bank.crash = False
    [call] = dalsegno_gateway.calls
    assert call.tool == ("probed" if version == 3 else None)
    assert call.id.startswith("1.probed." if in_turn else "before-1.probed.")
    if not took_effect:
        bank.entries.clear()
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        with pytest.raises(Refused) as refused:
            run.space("s").put("k", 1)
        assert refused.value.code == "UNSETTLED_CALLS"
        assert run.recover() == []
        run.space("s").put("k", 1)
        if not in_turn:
            assert probed(5) == ("found 5" if took_effect else "receipt 0")
            run.finish()
            return
        with run.turn() as turn:
            assert probed(5) == ("found 5" if took_effect else "receipt 0")
            turn.finish()
    assert len(bank.entries) == 1


@pytest.mark.parametrize("version", [2, 3])
def test_recover_makes_no_call_that_is_over(dalsegno_gateway: MemoryGateway, version: int) -> None:
    """Otherwise the turn could forget it."""
    with pytest.raises(Crash), in_process() as run, run.turn():
        run._transport._contract = version
        probed(6)
        bank.crash = True
        probed(5)
    bank.crash = False
    dalsegno_gateway.start_attempt()
    over, started = dalsegno_gateway.calls
    assert (over.state, started.state) == ("completed", "started")
    with in_process() as run:
        before = len(dalsegno_gateway.requests)
        assert run.recover() == [] and started.state == "completed"
        assert dalsegno_gateway.requests[before:] == ["calls/*/claim", "calls/*/settle"]
        with pytest.raises(Diverged, match=re.escape(f"made the call '{over.id}'")), run.turn():
            assert probed(5) == "found 5"
        with run.turn() as turn:
            assert (probed(5), probed(6)) == ("found 5", "receipt 0")
            turn.finish()


@pytest.mark.parametrize("version", [2, 3])
def test_recover_asks_the_probe_of_the_tool_that_made_the_call(dalsegno_gateway: MemoryGateway, version: int) -> None:
    asked: list[str] = []

    def probe_of(name: str) -> Any:
        def probe(cents: int, *, key: str) -> str:
            asked.append(name)
            return name

        return probe

    def crashes(cents: int) -> str:
        raise Crash

    tools = [
        tool(policy="probe", name=name, probe=probe_of(name))(crashes)
        for name in ("shop", "shop.more", "more")
    ]
    with pytest.raises(Crash), in_process() as run, run.turn():
        run._transport._contract = version
        for id in "1.shop.aaaaaaaaaaaa.0.x", "shop.more.aaaaaaaaaaaa.0":
            with pytest.raises(Crash):
                run.call(id, policy="probe", arguments={"cents": 5}, tool=lambda *_: raise_crash())
        tools[1](5)
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        assert [call["id"] for call in run.recover()] == ["1.shop.aaaaaaaaaaaa.0.x", "shop.more.aaaaaaaaaaaa.0"]
        assert asked == ["shop.more"] and dalsegno_gateway.calls[2].result == "shop.more"
        for call in run.recover():
            run.settle(call["id"], "failed", "looked")
        run.finish()


@pytest.mark.parametrize("version", [2, 3])
def test_recover_finds_a_tool_of_your_own_ids_by_the_name_in_the_store(
    dalsegno_gateway: MemoryGateway, version: int
) -> None:
    @tool(policy="probe", name="order", probe=find, id=lambda cents: f"2.pay.aaaaaaaaaaaa.{cents}")
    def order(cents: int, *, key: str = "") -> str:
        return bank.pay(key)

    bank.crash = True
    with pytest.raises(Crash), in_process() as run:
        run._transport._contract = version
        order(5)
    bank.crash = False
    dalsegno_gateway.start_attempt()
    assert dalsegno_gateway.calls[0].tool == ("order" if version == 3 else None)
    with in_process() as run:
        if version == 2:
            assert [call["id"] for call in run.recover()] == ["2.pay.aaaaaaaaaaaa.5"], "the id does not say the tool"
            assert order(5) == "found 5"
        assert run.recover() == [] and order(5) == "found 5"
        run.finish()


@pytest.mark.parametrize("version", [2, 3])
def test_what_a_call_spent_counts_once(dalsegno_gateway: MemoryGateway, version: int) -> None:
    with in_process() as run:
        run._transport._contract = version
        with run.turn() as turn:
            with pytest.raises(Crash):
                run.call("a", policy="ask", tool=lambda *_: raise_crash())
            run.complete("a", "failed", usage={"tokensIn": 5, "costMicroUSD": 7})
            assert dalsegno_gateway.rows.usage == ({"tokensIn": 5, "costMicroUSD": 7} if version == 3 else {})
            turn.spent(tokens_in=1)
        with run.turn():
            pass
        run.finish()
    assert dalsegno_gateway.rows.usage == {"tokensIn": 6, "costMicroUSD": 7}


@pytest.mark.parametrize("version", [2, 3])
def test_a_step_and_a_tool_say_what_they_spent_once(dalsegno_gateway: MemoryGateway, version: int) -> None:
    def model() -> int:
        dalsegno.spent(tokens_in=5)
        dalsegno.spent(tokens_in=5, tokens_out=2)
        return 1

    @tool(policy="retrySameKey")
    def search(word: str) -> str:
        dalsegno.spent(cost_micro_usd=7, tool_calls=1)
        return word

    counted = {"tokensIn": 10, "tokensOut": 2, "costMicroUSD": 7, "toolCalls": 1}
    with in_process() as run:
        run._transport._contract = version
        for crashes in True, False:
            with pytest.raises(Crash) if crashes else nullcontext(), run.turn() as turn:
                turn.step("draft", model)
                search("a")
                run.call("own", policy="ask", tool=lambda *_: dalsegno.spent(tool_calls=0))
                if crashes:
                    raise Crash
            assert dalsegno_gateway.rows.usage == (counted if version == 3 or not crashes else {})
        with pytest.raises(NotAttached, match="in a step or in a tool"):
            dalsegno.spent(tokens_in=1)
        run.finish()
    assert dalsegno_gateway.rows.usage == counted


def test_a_tool_that_runs_after_its_probe_says_what_it_spent(dalsegno_gateway: MemoryGateway) -> None:
    @tool(policy="probe", probe=find)
    def paid(cents: int, *, key: str = "") -> str:
        if bank.crash:
            raise Crash
        dalsegno.spent(tool_calls=1)
        return "paid"

    bank.crash = True
    with pytest.raises(Crash), in_process() as run, run.turn():
        paid(5)
    bank.crash = False
    dalsegno_gateway.start_attempt()
    with in_process() as run, run.turn() as turn:
        assert paid(5) == "paid"
        turn.finish()
    assert dalsegno_gateway.rows.usage == {"toolCalls": 1}


def test_what_a_call_spends_while_a_boundary_is_sent_counts_with_the_next_one(
    dalsegno_gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an older gateway, whose calls count no usage."""
    send: Any = Transport.send

    def and_a_call_ends(transport: Transport, path: str, *args: Any, **kwargs: Any) -> Any:
        answer = send(transport, path, *args, **kwargs)
        if path == "turns/1":
            run.complete("late", "completed", usage={"tokensIn": 5})
        return answer

    monkeypatch.setattr(Transport, "send", and_a_call_ends)
    with in_process() as run:
        run._transport._contract = 2
        for id in "early", "late":
            with pytest.raises(Crash):
                run.call(id, policy="retrySameKey", tool=lambda *_: raise_crash())
        run.complete("early", "completed", usage={"tokensIn": 2})
        with run.turn():
            pass
        assert dalsegno_gateway.rows.usage == {"tokensIn": 2}
        with run.turn() as turn:
            turn.finish()
    assert dalsegno_gateway.rows.usage == {"tokensIn": 7}


def test_what_calls_have_spent_is_kept_if_a_boundary_is_refused(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        run._transport._contract = 2
        run.call("a", policy="ask", tool=lambda *_: dalsegno.spent(tokens_in=5))
        with pytest.raises(Refused), run.turn() as turn:
            turn.record(Operation.put("", "k", 1))
        assert dalsegno_gateway.rows.usage == {}
        with run.turn() as turn:
            run.accept("a")
            turn.finish()
    assert dalsegno_gateway.rows.usage == {"tokensIn": 5}


def test_threads_lose_nothing_of_what_they_have_spent(
    dalsegno_gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = _usage.add

    def slow(one: Any, other: Any) -> Any:
        added = add(one, other)
        time.sleep(0.02)
        return added

    def in_threads(function: Callable[[int], object]) -> None:
        contexts = [contextvars.copy_context() for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda number: contexts[number].run(function, number), range(4)))

    def search(key: str, arguments: Any) -> None:
        in_threads(lambda _: dalsegno.spent(tokens_in=1))

    monkeypatch.setattr(_usage, "add", slow)
    with in_process() as run:
        run._transport._contract = 2
        for number in range(4):
            with pytest.raises(Crash):
                run.call(f"c{number}", policy="retrySameKey", tool=lambda *_: raise_crash())
        in_threads(lambda number: run.complete(f"c{number}", "completed", usage={"tokensOut": 1}))
        with run.turn() as turn:
            run.call("search", policy="readOnly", tool=search)
            in_threads(lambda _: turn.spent(tool_calls=1))
            turn.finish()
    assert dalsegno_gateway.rows.usage == {"tokensIn": 4, "tokensOut": 4, "toolCalls": 4}


def test_what_has_no_probe_stays_unsettled(dalsegno_gateway: MemoryGateway) -> None:
    with pytest.raises(Crash), in_process() as run:
        run.call("unknown", policy="probe", tool=lambda *_: raise_crash())
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        assert [call["id"] for call in run.recover()] == ["unknown"]
        run.settle("unknown", "failed", "looked")
        assert run.recover() == []
        run.finish()


def test_a_probe_that_raised_is_asked_again_by_the_next_recover(dalsegno_gateway: MemoryGateway) -> None:
    answers: Iterator[str | Crash] = iter([Crash(), "found"])

    def probe(cents: int) -> str:
        answer = next(answers)
        if isinstance(answer, Crash):
            raise answer
        return answer

    @tool(policy="probe", probe=probe)
    def flaky(cents: int) -> str:
        raise Crash

    with pytest.raises(Crash), in_process() as run, run.turn():
        flaky(5)
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        with pytest.raises(Crash):
            run.recover()
        assert run.recover() == [] and dalsegno_gateway.calls[0].result == "found"
        run.accept(dalsegno_gateway.calls[0].id)
        run.finish()


@pytest.mark.parametrize("how", ["complete", "settle"])
def test_a_call_that_was_ended_by_hand_stops_no_limit_and_no_suspend(dalsegno_gateway: MemoryGateway, how: str) -> None:
    def dies(key: str, arguments: Any) -> None:
        raise Crash

    with pytest.raises(dalsegno.Suspended), in_process() as run:
        with pytest.raises(Crash):
            run.call("a", policy="probe", tool=dies)
        if how == "complete":
            run.complete("a", "completed", 7)
        else:
            run.settle("a", "completed", "looked", 7)
        run.at_limit = True
        with pytest.raises(dalsegno.AtLimit):
            run.check()
        run.at_limit = False
        assert run.call("a", policy="probe", tool=dies) == 7
        dalsegno_gateway.suspend()
        run.suspending = True
        run.check()


def raise_crash() -> None:
    raise Crash


def test_attach_adopts_so_that_a_turn_and_records_are_accepted(dalsegno_gateway: MemoryGateway) -> None:
    bank.crash = True
    with pytest.raises(Crash), in_process() as run:
        run.call("pay-1", policy="retrySameKey", arguments=[5], tool=lambda key, _: bank.pay(key))
    dalsegno_gateway.start_attempt()
    bank.crash = False
    with in_process() as run:
        run.space("s").put("k", 1)
        run.commit(1, state={})
        with pytest.raises(Diverged, match="'pay-1' is stored with other arguments"):
            run.call("pay-1", policy="retrySameKey", arguments=[6], tool=lambda key, _: bank.pay(key))
        with pytest.raises(Diverged):
            run.call("pay-1", policy="readOnly", arguments=[5], tool=lambda key, _: bank.pay(key))
        assert run.call("pay-1", policy="retrySameKey", arguments=[5], tool=lambda key, _: bank.pay(key)) == "receipt 0"
        run.finish()
    assert len(bank.entries) == 1


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


def test_an_ask_call_that_died_holds_the_run_until_a_person_has_looked(dalsegno_gateway: MemoryGateway) -> None:
    bank.crash = True
    with pytest.raises(Crash), in_process() as run, run.turn():
        asked(5)
    dalsegno_gateway.end_attempt()
    with pytest.raises(RuntimeError, match="held: the outcome of the call"):
        dalsegno_gateway.start_attempt()
    dalsegno_gateway.settle(dalsegno_gateway.calls[0].id, "completed", result="by hand")
    dalsegno_gateway.start_attempt()
    with in_process() as run, run.turn() as turn:
        assert asked(5) == "by hand"
        turn.finish()


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
