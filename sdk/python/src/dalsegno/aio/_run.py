"""`AsyncRun`: each method of `Run`, in the thread of the requests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn

from dalsegno._codec import S
from dalsegno._errors import CallFailed, KeyRefused
from dalsegno._portal import LoopWatch, Portal
from dalsegno._run import Run
from dalsegno._tools import stored_calls
from dalsegno.aio._forward import forwarded
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

    # While a wait lingers, no other request is sent.
    commit = forwarded(Run[Any].commit)
    complete = forwarded(Run[Any].complete)
    settle = forwarded(Run[Any].settle)
    adopt = forwarded(Run[Any].adopt)
    write = forwarded(Run[Any].write)
    finish = forwarded(Run[Any].finish)
    check = forwarded(Run[Any].check)
    suspend = forwarded(Run[Any].suspend)
    park = forwarded(Run[Any].park)
    read_inbox = forwarded(Run[Any].read_inbox)
    wait = forwarded(Run[Any].wait)
    approval = forwarded(Run[Any].approval)
    sleep = forwarded(Run[Any].sleep)
    message = forwarded(Run[Any].message)
    rate_limit = forwarded(Run[Any].rate_limit)

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
            with begun.running():
                result = await value_of(tool(begun.key, begun.arguments))
        except (CallFailed, KeyRefused) as refusal:
            await self._portal.call(calls.end, begun, refusal.outcome, refusal.result)
            raise
        await self._portal.call(calls.end, begun, "completed", result)
        return result

    async def recover(self) -> list[dict[str, Any]]:
        """See `Run.recover`. Tools run on the loop, and probes in the thread of the requests."""
        await self.adopt()
        for bound in stored_calls(self.sync):
            with self.sync._calls.recovering(bound.id, is_due=not self.sync.branch), suppress(CallFailed):
                await make(self._portal, bound)
        return self.sync._unsettled()
