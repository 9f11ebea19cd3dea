"""The calls that an earlier attempt has left: probes, `recover`, `adopt`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from dalsegno import Diverged, Refused, _tools, tool
from dalsegno.aio import AsyncRun
from dalsegno.testing.memory import MemoryGateway
from payments import fresh_bank as fresh_bank  # each test begins with an empty bank
from payments import asked, bank, find, pay, probed, raise_crash
from test_turn import Crash, in_process


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


@pytest.mark.parametrize("took_effect", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_turn_has_to_make_the_calls_that_recover_has_ended_before_it(
    dalsegno_gateway: MemoryGateway, is_async: bool, took_effect: bool
) -> None:
    bank.crash = True
    with pytest.raises(Crash), in_process() as run, run.turn():
        probed(5)
    bank.crash = False
    if not took_effect:
        bank.entries.clear()
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        assert (asyncio.run(AsyncRun(run).recover()) if is_async else run.recover()) == []
        assert [call.state for call in dalsegno_gateway.calls] == ["completed"]
        with pytest.raises(Diverged, match=r"'1\.probed"), run.turn():
            pass
        with run.turn() as turn:
            assert probed(5) == ("found 5" if took_effect else "receipt 0")
            turn.finish()
    assert len(bank.entries) == 1


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("1.probed.call_1", "probed"),
        ("1.probed.call_1.0123456789ab.in-01234567", "probed"),
        ("1.probed.0123456789ab.in-01234567.0", "probed"),
        ("lg.probed.call_1.0123456789abcdef", "probed"),
        ("1.named.call_1", "named"),
        ("1.theirs.0123456789ab.0", "theirs"),
    ],
)
def test_recover_leaves_the_calls_of_a_framework_alone_whose_tool_has_the_same_name(
    dalsegno_gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch, id: str, name: str
) -> None:
    tool(policy="probe", name="named", probe=find, id=lambda cents: f"order-{cents}")(probed.function)
    tool(policy="probe", name="theirs", probe=find)(probed.function)
    monkeypatch.setattr(_tools, "framework_probes", {"theirs"})
    with pytest.raises(Crash), in_process() as run, run.turn():
        run._calls.begin(id, "probe", None, {"cents": 5}, None, name)
        raise Crash
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        assert [call["id"] for call in run.recover()] == [id]
        run.settle(id, "failed", "looked")
        run.finish()
    assert bank.entries == []


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


@pytest.mark.parametrize("is_async", [True, False])
def test_after_a_rewind_no_turn_has_to_make_a_call_that_recover_has_ended(
    dalsegno_gateway: MemoryGateway, is_async: bool
) -> None:
    bank.crash = True
    with pytest.raises(Crash), in_process() as run:
        with run.turn():
            pass
        with run.turn():
            probed(5)
    bank.crash = False
    dalsegno_gateway.rewind(1)
    dalsegno_gateway.start_attempt()
    with in_process() as run:
        assert (asyncio.run(AsyncRun(run).recover()) if is_async else run.recover()) == []
        with run.turn() as turn:
            turn.finish()
    assert dalsegno_gateway.finish is not None
