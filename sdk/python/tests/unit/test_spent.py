"""What calls have spent: it counts once."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

import dalsegno
from dalsegno import NotAttached, Operation, Refused, _usage, tool
from dalsegno._transport import Transport
from dalsegno.testing.memory import MemoryGateway
from payments import fresh_bank as fresh_bank  # each test begins with an empty bank
from payments import bank, find, raise_crash
from test_turn import Crash, in_process


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


def test_a_turn_that_a_tool_opens_counts_what_it_spends(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:

        @tool(policy="readOnly")
        def research() -> int:
            with run.turn():
                run._spend(tokens_in=5)
            assert dalsegno_gateway.rows.usage == {"tokensIn": 5}, "the turn is committed, and the tool is not over"
            run._spend(tokens_in=2)
            return 1

        research()
        run.finish()
    assert dalsegno_gateway.rows.usage == {"tokensIn": 7}
