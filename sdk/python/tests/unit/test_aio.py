"""The run for asyncio: the same methods, one thread for requests, and a watch over the loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest

import dalsegno
from dalsegno import CallFailed, Diverged, Run, Space, Turn, _portal, aio
from dalsegno._portal import LoopWatch
from dalsegno.aio._tools import call_tool
from dalsegno.testing.memory import MemoryGateway
from test_turn import Crash

R = TypeVar("R")

PAIRS = [(Run, aio.AsyncRun), (Turn, aio.AsyncTurn), (Space, aio.AsyncSpace)]
# Constructors, and what only one of them can have.
APART = {"attach", "sync"}


def public(kind: type) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_") and name not in APART
    }


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(it.name, it.kind, it.default) for it in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(("plain", "asynchronous"), PAIRS)
def test_the_signatures_are_the_same(plain: type, asynchronous: type) -> None:
    methods = {name: it for name, it in public(plain).items() if inspect.isfunction(it)}
    others = {name: it for name, it in public(asynchronous).items() if inspect.isfunction(it)}
    assert methods.keys() == others.keys()
    for name, method in methods.items():
        assert parameters(method) == parameters(others[name]), name


@pytest.mark.parametrize(("plain", "asynchronous"), PAIRS)
def test_the_values_are_the_same(plain: type, asynchronous: type) -> None:
    def values(kind: type) -> set[str]:
        annotated = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
        named = {name for name, it in public(kind).items() if not inspect.isfunction(it)}
        return {name for name in annotated | named if not name.startswith("_")} - APART

    assert values(plain) - {"name"} <= values(asynchronous)


def test_attach_has_the_same_parameters() -> None:
    assert parameters(dalsegno.attach) == parameters(aio.attach)


@dalsegno.tool(policy="retrySameKey")
async def pay(cents: int, *, key: str = "") -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"cents": cents, "key": key}


LONGEST_SECONDS = 30
"""After so long a test fails. A client that is broken hangs, and must not hang the tests."""


def run_loop(main: Coroutine[Any, Any, R]) -> R:
    """What `asyncio.run` returns or raises. It runs in a thread that nobody waits for at the end, if it hangs."""
    ended: Future[R] = Future()

    def target() -> None:
        try:
            ended.set_result(asyncio.run(main))
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=target, daemon=True).start()
    return ended.result(LONGEST_SECONDS)


async def attach(**options: Any) -> aio.AsyncRun[Any]:
    """No request outlives the gateway for long, because Python waits at its end for the thread of the requests."""
    run: aio.AsyncRun[Any] = await aio.attach(heartbeat=False, sigterm=False, store_timeout=LONGEST_SECONDS, **options)
    return run


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until it is so."""
    end = time.monotonic() + LONGEST_SECONDS
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0)


@contextlib.contextmanager
def held(event: threading.Event) -> Iterator[Callable[[], bool]]:
    """A function for the thread of the requests that waits for the event. At the end it goes on in any case."""
    try:
        yield lambda: event.wait(LONGEST_SECONDS)
    finally:
        event.set()


def test_an_agent_runs_and_an_interrupted_turn_is_answered_from_the_store(dalsegno_gateway: MemoryGateway) -> None:
    asked: list[int] = []

    async def model(question: int) -> int:
        asked.append(question)
        return question

    async def agent(crash: bool) -> None:
        async with await attach() as run:
            async with run.turn() as turn:
                drafts = await asyncio.gather(*(turn.step(f"draft-{n}", model, n) for n in range(3)))
                run.state["paid"] = await asyncio.gather(pay(5), pay(5), pay(6))
                turn.spent(tokens_in=sum(drafts))
                if crash:
                    raise Crash
            run.space("s")
            await run.space("s").put("k", 1)
            assert [item.value async for item in run.space("s").items()] == [1]
            await run.finish(output=len(run.state["paid"]))

    with pytest.raises(Crash):
        run_loop(agent(crash=True))
    before = len(dalsegno_gateway.calls)
    dalsegno_gateway.start_attempt()
    run_loop(agent(crash=False))
    assert (len(dalsegno_gateway.calls), sorted(asked)) == (before, [0, 1, 2])
    assert len({entry["key"] for entry in dalsegno_gateway.state["paid"]}) == 3
    assert dalsegno_gateway.rows.usage == {"tokensIn": 3} and dalsegno_gateway.finish


def test_a_cancelled_request_is_sent_and_the_next_one_queues_behind_it(dalsegno_gateway: MemoryGateway) -> None:
    async def agent() -> None:
        async with await attach() as run:
            writing = asyncio.ensure_future(run.space("s").put("k", "cancelled"))
            await asyncio.sleep(0)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            await run.space("s").append("k", "e", "next")
            assert [item.value async for item in run.space("s").items()] == ["cancelled", "next"]
            await run.finish()

    run_loop(agent())


def test_a_cancel_during_a_commit_is_raised_after_it(dalsegno_gateway: MemoryGateway) -> None:
    async def agent() -> None:
        run = await attach()

        async def turn() -> None:
            async with run.turn():
                run.state["n"] = 1

        task = asyncio.ensure_future(turn())
        await until(lambda: "turns/1" in dalsegno_gateway.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (run.next_turn, run.state) == (2, {"n": 1})
        await run.finish()

    run_loop(agent())


def test_what_ends_the_process_passes_through_the_loop(dalsegno_gateway: MemoryGateway) -> None:
    async def agent() -> None:
        async with await attach() as run:
            await run.approval("buy", 1, title="Buy?")

    with pytest.raises(dalsegno.Parked):
        run_loop(agent())
    assert dalsegno_gateway.open_waits == ["buy"]


def test_a_call_takes_a_coroutine_or_a_function(dalsegno_gateway: MemoryGateway) -> None:
    async def refuses(key: str, arguments: Any) -> None:
        raise CallFailed("no")

    async def agent() -> None:
        async with await attach() as run:
            assert await run.call("a", policy="ask", tool=lambda key, n: n, arguments=1) == 1
            with pytest.raises(Diverged):
                await run.call("a", policy="ask", tool=lambda key, n: n, arguments=2)
            for _ in range(2):
                with pytest.raises(CallFailed):
                    await run.call("b", policy="ask", tool=refuses)
            await run.finish()

    run_loop(agent())


def test_leaving_without_an_end_is_an_error(dalsegno_gateway: MemoryGateway) -> None:
    async def agent() -> None:
        async with await attach():
            pass

    with pytest.raises(dalsegno.Error, match="ended without"):
        run_loop(agent())


def test_several_loops_one_after_the_other_use_one_run(dalsegno_gateway: MemoryGateway) -> None:
    run: aio.AsyncRun[Any] = run_loop(attach())
    run_loop(run.space("s").put("k", 1))
    run_loop(run.finish())
    assert dalsegno_gateway.finish


def test_on_resume_may_be_a_coroutine(dalsegno_gateway: MemoryGateway) -> None:
    judged: list[Any] = []

    async def judge(run: aio.AsyncRun[Any], answers: dict[str, dalsegno.Answer]) -> None:
        judged.append((run.next_turn, [*answers]))

    async def agent() -> None:
        run = await attach(on_resume=judge)
        await run.commit(1, state={})
        run.sync._leave()

    run_loop(agent())
    dalsegno_gateway.start_attempt()

    async def second() -> None:
        run = await attach(on_resume=judge)
        await run.finish()

    run_loop(second())
    assert judged == [(2, [])]


class Clock:
    """In place of the module `time` of the watch: the time that a test sets, and how often it was read."""

    now, reads = 0.0, 0

    def monotonic(self) -> float:
        self.reads += 1
        return self.now


def test_a_loop_that_stands_still_is_logged_with_where_it_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(_portal, "time", clock)
    monkeypatch.setattr(_portal, "TICK_SECONDS", 0.01)

    def stands_still(seconds: float) -> None:
        """Blocks the loop. Meanwhile only the watch reads the clock: it looks at the loop several times."""
        clock.now += seconds
        enough, end = clock.reads + 5, time.monotonic() + LONGEST_SECONDS
        while clock.reads < enough:
            assert time.monotonic() < end
            time.sleep(0.01)

    async def blocks() -> list[int]:
        watch, logged = LoopWatch(stall_seconds=30), []
        for seconds in 31, 31, 29:
            stands_still(seconds)
            logged.append(len(caplog.records))
            await until(lambda: watch._ticked == clock.now)
        watch.stop()
        return logged

    with caplog.at_level(logging.WARNING, "dalsegno"):
        assert run_loop(blocks()) == [1, 2, 2], "once for each stall"
    for message in [record.getMessage() for record in caplog.records]:
        assert "the event loop has not run for 30 s" in message and "in stands_still\n" in message


def test_a_tool_in_a_tool_or_in_a_step_is_refused(dalsegno_gateway: MemoryGateway) -> None:
    async def inner() -> None:
        with pytest.raises(dalsegno.Error, match="'pay' is called inside of a step or of another tool"):
            await asyncio.gather(pay(5))

    async def main() -> None:
        async with await attach() as run:
            async with run.turn() as turn:
                await dalsegno.tool(policy="ask", name="outer")(inner)()
                await turn.step("step", inner)
            await run.finish()

    run_loop(main())
    assert [call.id.split(".")[1] for call in dalsegno_gateway.calls] == ["outer", "step"]


def test_a_tool_of_a_synchronous_run_may_be_awaited(dalsegno_gateway: MemoryGateway) -> None:
    with dalsegno.attach(heartbeat=False, sigterm=False) as run:
        assert run_loop(call_tool(run, pay, (5,), {}))["cents"] == 5
        run.finish()


def test_a_cancelled_await_whose_request_leaves_ends_the_run_all_the_same(dalsegno_gateway: MemoryGateway) -> None:
    async def agent() -> None:
        async with await attach() as run:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(run.approval("buy", 1, title="Buy?", linger=0.5), 0.1)
            await run.space("s").put("k", 1)
            raise AssertionError("the run is parked")

    with pytest.raises(dalsegno.Parked):
        run_loop(agent())


def test_a_run_that_is_left_after_such_a_cancel_raises_what_ended_it(dalsegno_gateway: MemoryGateway) -> None:
    async def agent() -> None:
        async with await attach() as run:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(run.approval("buy", 1, title="Buy?", linger=0.5), 0.1)
            raise Crash

    with pytest.raises(dalsegno.Parked):
        run_loop(agent())


def test_a_cancel_while_a_turn_is_being_opened_leaves_none_open(dalsegno_gateway: MemoryGateway) -> None:
    async def agent() -> None:
        async with await attach() as run:
            with held(threading.Event()) as wait:
                run._portal.submit(wait)

                async def turn() -> None:
                    async with run.turn():
                        raise AssertionError("it was cancelled before")

                task = asyncio.ensure_future(turn())
                await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            async with run.turn() as next_turn:
                next_turn.finish()

    run_loop(agent())
    assert dalsegno_gateway.finish


def test_a_store_that_is_away_at_the_commit_ends_the_process_and_not_the_loop(
    dalsegno_gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a task that is not the main one, a SystemExit stops the loop, and the agent sees a cancel."""
    seen: list[str] = []

    async def agent() -> None:
        try:
            async with await attach() as run:
                monkeypatch.setattr(run.sync, "_keep", lambda *_: leaves())
                async with run.turn():
                    pass
        except dalsegno.StoreUnavailable as leave:
            await asyncio.sleep(0)
            seen.append(leave.message)
            raise

    with pytest.raises(dalsegno.StoreUnavailable):
        run_loop(agent())
    assert seen == ["away"]


def leaves() -> None:
    raise dalsegno.StoreUnavailable("away")


def test_a_state_that_is_no_json_drops_the_turn(dalsegno_gateway: MemoryGateway) -> None:
    async def agent() -> None:
        async with await attach() as run:
            with pytest.raises(TypeError, match="a value of the type set"):
                async with run.turn():
                    run.state["n"] = {1}
            assert (run.state, run.next_turn) == ({}, 1)
            async with run.turn() as turn:
                turn.finish()

    run_loop(agent())


def test_a_cancel_hides_no_error_of_the_commit(
    dalsegno_gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def agent() -> None:
        run = await attach()
        began = threading.Event()
        with held(threading.Event()) as wait:

            def keep(*_: Any) -> None:
                began.set()
                wait()
                raise Diverged("forgotten")

            monkeypatch.setattr(run.sync, "_keep", keep)

            async def turn() -> None:
                async with run.turn():
                    pass

            task = asyncio.ensure_future(turn())
            await until(began.is_set)
            task.cancel()
            await asyncio.sleep(0.01)
            task.cancel()  # once more: the end of the commit is awaited all the same
            await asyncio.sleep(0.01)
            assert not task.done()
        with pytest.raises(Diverged):
            await task
        monkeypatch.undo()
        await run.finish()

    run_loop(agent())


@pytest.mark.parametrize("plan", [False, True])
def test_a_turn_commits_the_state_as_it_was_at_its_end(dalsegno_gateway: MemoryGateway, plan: bool) -> None:
    async def agent() -> None:
        run = await attach()
        blocked = threading.Event()

        async def writes_later() -> None:
            await asyncio.sleep(0.05)
            run.state["n"] = "of another task"
            blocked.set()

        task = asyncio.ensure_future(writes_later())
        with held(blocked) as wait, contextlib.suppress(Crash):
            async with run.turn() as turn:
                run.state["n"] = "of the turn"
                run._portal.submit(wait)
                if plan:
                    await turn.plan()
                    raise Crash
        await task
        assert dalsegno_gateway.state == {"n": "of the turn"}
        await run.finish()

    run_loop(agent())


def test_steps_and_tools_at_the_same_time_say_what_each_has_spent(dalsegno_gateway: MemoryGateway) -> None:
    @dalsegno.tool(policy="retrySameKey")
    async def search(cents: int) -> None:
        await asyncio.sleep(0)
        dalsegno.spent(cost_micro_usd=cents)

    async def model(tokens: int) -> None:
        await asyncio.sleep(0)
        await asyncio.to_thread(dalsegno.spent, tokens_in=tokens)

    async def own(key: str, arguments: Any) -> None:
        dalsegno.spent(tool_calls=1)

    async def agent() -> None:
        async with await attach() as run:
            async with run.turn() as turn:
                await asyncio.gather(*(turn.step(f"draft-{n}", model, n) for n in (1, 2)), search(3), search(4))
                await run.call("own", policy="ask", tool=own)
                assert dalsegno_gateway.rows.usage == {"tokensIn": 3, "costMicroUSD": 7, "toolCalls": 1}
                turn.finish()

    run_loop(agent())
