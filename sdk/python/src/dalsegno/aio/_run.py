"""`AsyncRun`: each method of `Run`, in the thread of the requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, NoReturn

from dalsegno._attempt import Head
from dalsegno._codec import S
from dalsegno._errors import CallFailed, KeyRefused
from dalsegno._inbox import Message
from dalsegno._portal import LoopWatch, Portal
from dalsegno._records import Operation
from dalsegno._run import Run
from dalsegno._tools import stored_calls
from dalsegno._waits import Answer, Approval, Wait
from dalsegno.aio._space import AsyncSpace
from dalsegno.aio._tools import make, value_of
from dalsegno.aio._turn import AsyncTurn
from dalsegno.aio._view import View


class AsyncRun(View[S]):
    """One attempt at a run, for asyncio. `attach` makes it; it is an asynchronous context manager. See `Run`."""

    def __init__(self, run: Run[S]) -> None:
        self.sync = run
        self._portal = Portal()
        self._watch: LoopWatch | None = None
        run._portal = self._portal

    async def __aenter__(self) -> AsyncRun[S]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `Run.__exit__`."""
        try:
            await self._portal.call(self.sync._end, kind is None)
        finally:
            self.sync._leave()
            if self._watch is not None:
                self._watch.stop()
            self._portal.close()

    def turn(self) -> AsyncTurn[S]:
        """The next turn, as an asynchronous context manager. See `Run.turn`."""
        return AsyncTurn(self._portal, self.sync)

    def space(self, name: str) -> AsyncSpace:
        """The records of one space. See `Run.space`."""
        return AsyncSpace(self._portal, self.sync.space(name))

    def accept(self, *ids: str) -> None:
        """See `Run.accept`."""
        self.sync.accept(*ids)

    def fail(self, message: str, fatal: bool = False) -> NoReturn:
        """See `Run.fail`."""
        self.sync.fail(message, fatal)

    async def commit(
        self,
        turn: int,
        state: Any = None,
        channels: Mapping[str, Any] | None = None,
        events: Iterable[Any] = (),
        usage: Mapping[str, int] | None = None,
        plan: bool = False,
        calls: Iterable[Mapping[str, Any]] = (),
        finish: Mapping[str, Any] | None = None,
        records: Iterable[Operation] = (),
        open_calls: Iterable[str] = (),
        inbox: Iterable[Message] = (),
        park: Iterable[str] | None = None,
        mode: str = "all",
    ) -> Head:
        """See `Run.commit`."""
        return await self._portal.call(
            self.sync.commit,
            turn,
            state,
            channels,
            events,
            usage,
            plan,
            calls,
            finish,
            records,
            open_calls,
            inbox,
            park,
            mode,
        )

    async def call(
        self,
        id: str,
        *,
        policy: str,
        tool: Callable[[str, Any], Any],
        key: str | None = None,
        arguments: Any = None,
        approval: str | None = None,
    ) -> Any:
        """See `Run.call`. The tool is an `async def` or a function; a function blocks the loop while it runs."""
        calls = self.sync._calls
        begun = await self._portal.call(calls.begin, id, policy, key, arguments, approval)
        if not begun.must_run:
            return begun.result
        try:
            result = await value_of(tool(begun.key, begun.arguments))
        except (CallFailed, KeyRefused) as refusal:
            await self._portal.call(calls.end, begun, refusal.outcome, refusal.result)
            raise
        await self._portal.call(calls.end, begun, "completed", result)
        return result

    async def complete(self, id: str, outcome: str, result: Any = None) -> None:
        """See `Run.complete`."""
        await self._portal.call(self.sync.complete, id, outcome, result)

    async def settle(self, id: str, outcome: str, reason: str, result: Any = None) -> None:
        """See `Run.settle`."""
        await self._portal.call(self.sync.settle, id, outcome, reason, result)

    async def adopt(self) -> None:
        """See `Run.adopt`."""
        await self._portal.call(self.sync.adopt)

    async def recover(self) -> list[dict[str, Any]]:
        """See `Run.recover`. Tools run on the loop, and probes in the thread of the requests."""
        await self.adopt()
        for bound in stored_calls(self.sync):
            with suppress(CallFailed):
                await make(self._portal, bound)
        return self.sync._unsettled()

    async def write(self, *operations: Operation) -> None:
        """See `Run.write`."""
        await self._portal.call(self.sync.write, *operations)

    async def finish(
        self, outcome: str = "succeeded", *, reason: str | None = None, message: str | None = None, output: Any = None
    ) -> None:
        """See `Run.finish`."""
        await self._portal.call(self.sync.finish, outcome, reason=reason, message=message, output=output)

    async def check(self) -> None:
        """See `Run.check`."""
        await self._portal.call(self.sync.check)

    async def suspend(self) -> None:
        """See `Run.suspend`."""
        await self._portal.call(self.sync.suspend)

    async def park(self, on: Iterable[str] = (), mode: str = "all") -> bool:
        """See `Run.park`."""
        return await self._portal.call(self.sync.park, on, mode)

    async def read_inbox(self) -> list[Message]:
        """See `Run.read_inbox`."""
        return await self._portal.call(self.sync.read_inbox)

    async def wait(
        self,
        id: str,
        kind: str,
        *,
        title: str | None = None,
        summary: str | None = None,
        proposal: Any = None,
        answer_schema: Any = None,
        time: datetime | None = None,
        topic: str | None = None,
        provider: str | None = None,
        reset_time: datetime | None = None,
        expires: float | timedelta | None = None,
        on_timeout: str | None = None,
    ) -> Wait:
        """See `Run.wait`."""
        return await self._portal.call(
            self.sync.wait,
            id,
            kind,
            title=title,
            summary=summary,
            proposal=proposal,
            answer_schema=answer_schema,
            time=time,
            topic=topic,
            provider=provider,
            reset_time=reset_time,
            expires=expires,
            on_timeout=on_timeout,
        )

    async def approval(
        self,
        id: str,
        proposal: Any,
        *,
        title: str,
        summary: str | None = None,
        answer_schema: Any = None,
        expires: float | timedelta | None = None,
        on_timeout: str | None = None,
        linger: float = 0.0,
    ) -> Approval:
        """See `Run.approval`. While it lingers, no other request is sent."""
        return await self._portal.call(
            self.sync.approval,
            id,
            proposal,
            title=title,
            summary=summary,
            answer_schema=answer_schema,
            expires=expires,
            on_timeout=on_timeout,
            linger=linger,
        )

    async def sleep(self, id: str, until: datetime, *, linger: float = 0.0) -> Answer:
        """See `Run.sleep`."""
        return await self._portal.call(self.sync.sleep, id, until, linger=linger)

    async def message(
        self,
        topic: str | None = None,
        *,
        id: str | None = None,
        expires: float | timedelta | None = None,
        on_timeout: str | None = None,
        linger: float = 0.0,
    ) -> Message | None:
        """See `Run.message`."""
        return await self._portal.call(
            self.sync.message, topic, id=id, expires=expires, on_timeout=on_timeout, linger=linger
        )

    async def rate_limit(
        self, provider: str, *, reset_time: datetime | None = None, id: str | None = None, linger: float = 0.0
    ) -> Answer:
        """See `Run.rate_limit`."""
        return await self._portal.call(self.sync.rate_limit, provider, reset_time=reset_time, id=id, linger=linger)
