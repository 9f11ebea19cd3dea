"""`AsyncTurn`: an open turn, in the thread of the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, overload

from dalsegno import _codec, _json
from dalsegno._codec import S
from dalsegno._errors import Unhandled
from dalsegno._portal import Portal
from dalsegno._records import Operation
from dalsegno._run import Run
from dalsegno._turn import Turn
from dalsegno.aio._forward import forwarded
from dalsegno.aio._tools import value_of

P = ParamSpec("P")
R = TypeVar("R")


class AsyncTurn(Generic[S]):
    """An open turn of the run, `async with run.turn() as turn`. See `Turn`."""

    def __init__(self, portal: Portal, run: Run[S]) -> None:
        self._portal, self._run = portal, run
        self.sync: Turn[S] = run.turn()
        """The turn below."""

    take_messages = forwarded(Turn[Any].take_messages)

    @property
    def number(self) -> int:
        """See `Turn.number`."""
        return self.sync.number

    @property
    def planned(self) -> bool:
        """See `Turn.planned`."""
        return self.sync.planned

    async def __aenter__(self) -> AsyncTurn[S]:
        try:
            await self._portal.call(self._run._open, self.sync)
        except asyncio.CancelledError:
            self._portal.submit(self._run._abandon, self.sync)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits the turn with the state as it is now. A cancel that comes meanwhile is raised when the commit is
        answered."""
        text: str | None = None
        try:
            text = None if kind is not None else _json.dumps(self._run.state)
        finally:
            await self._portal.call_to_its_end(self._run._close, self.sync, self.sync._draft, text)
        if carried := Unhandled.find(error):
            raise carried

    @overload
    async def step(self, name: str, fn: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, name: str, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, name: str, fn: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        """See `Turn.step`. `fn` is an `async def` or a function; a function blocks the loop while it runs."""
        step = await self._portal.call(self._run._begin_step, name)
        with step:
            result = step.begun.result
            if step.begun.must_run:
                with step.begun.running():
                    result = await value_of(fn(*args, **kwargs))
                result = await self._portal.call(self._run._end_step, step, result)
        return _codec.decode(_codec.return_type(fn), result)

    async def plan(self) -> None:
        """See `Turn.plan`."""
        await self._portal.call(self.sync._plan, _json.dumps(self._run.state))

    def event(self, value: Any) -> None:
        """See `Turn.event`."""
        self.sync.event(value)

    def spent(self, *, tokens_in: int = 0, tokens_out: int = 0, tool_calls: int = 0, cost_micro_usd: int = 0) -> None:
        """See `Turn.spent`."""
        self.sync.spent(
            tokens_in=tokens_in, tokens_out=tokens_out, tool_calls=tool_calls, cost_micro_usd=cost_micro_usd
        )

    def record(self, *operations: Operation) -> None:
        """See `Turn.record`."""
        self.sync.record(*operations)

    def finish(
        self, outcome: str = "succeeded", *, reason: str | None = None, message: str | None = None, output: Any = None
    ) -> None:
        """See `Turn.finish`."""
        self.sync.finish(outcome, reason=reason, message=message, output=output)
