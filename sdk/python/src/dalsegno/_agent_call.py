"""Calls of the tools that an agent framework runs."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn, TypeAlias

from dalsegno._calls import Begun
from dalsegno._errors import CallFailed, Uncertain
from dalsegno._ordinals import Slot
from dalsegno._run import Run
from dalsegno._tools import BoundCall, Policy, Tool
from dalsegno.aio._tools import value_of

Ask: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]
"""Asks a probe about a stored call. Returns the result to store, or raises `CallFailed` if nothing took effect."""

Send: TypeAlias = Callable[[Callable[[], Begun | None]], Awaitable[Begun | None]]
"""Runs a function in the thread of the requests."""

_enclosing: ContextVar[str] = ContextVar("dalsegno.enclosing_call", default="")


def enclosing_call() -> str:
    """The id of the framework's tool call in which this code runs; empty outside of one."""
    return _enclosing.get()


def inside(id: str) -> str:
    """The part of an id which says that the call was made in another call, `.in-HASH`; empty for no other call."""
    return f".in-{hashlib.sha256(id.encode()).hexdigest()[:8]}" if id else ""


@contextmanager
def running(begun: Begun) -> Generator[None]:
    """While a tool runs: what is spent counts for its call, and code inside knows in which call it runs."""
    token = _enclosing.set(begun.id)
    try:
        with begun.running():
            yield
    finally:
        _enclosing.reset(token)


async def ask_probe(probe: Callable[..., Any], call: Mapping[str, Any]) -> Any:
    """What a probe finds about a stored call. It gets the arguments by name, and `key` if it has such a parameter.

    A probe that is no `async def` runs in a thread of its own: requests and the loop go on meanwhile.
    """
    given: dict[str, Any] = {**(call.get("arguments") or {})}
    if "key" in inspect.signature(probe).parameters:
        given["key"] = call["key"]
    bound = partial(probe, **given)
    return await (bound() if inspect.iscoroutinefunction(probe) else value_of(await asyncio.to_thread(bound)))


class _AgentTool(Tool[Any, Any]):
    """The tool of one call, which the framework runs. `Run.recover` does not know it, and leaves the call alone."""

    def __init__(self, name: str, policy: Policy, approval: str | None) -> None:
        self.name, self.policy, self.probe = name, policy, None
        self._approval = approval


class AgentCall(BoundCall):
    """One call of a tool that a framework runs, with its arguments as JSON. See `BoundCall`."""

    def __init__(
        self, run: Run[Any], slot: Slot, name: str, policy: Policy, arguments: Any, approval: str | None = None
    ) -> None:
        id = run._anew(slot.id) if policy == "readOnly" else slot.id
        super().__init__(_AgentTool(name, policy, approval), run, slot, id, arguments, arguments)

    @property
    def result(self) -> Any:
        """The result, as it is stored."""
        return self._result

    async def claim(self, send: Send, ask: Ask | None) -> Begun | None:
        """As `begin`, in the thread of the requests, for code on the loop. The probe is asked on the loop.

        In the other thread a probe could not use the clients of the agent, nor the run itself. A call that is over is
        not made again, so the calls that were made inside of it (`running`, `inside`) are not due any more.
        """
        try:
            begun = await self._claim(send, ask)
        except CallFailed:
            self._accept_inside(self.id)
            raise
        if begun is None:
            self._accept_inside(self.id)
        return begun

    def _accept_inside(self, id: str) -> None:
        for call in self._run._calls.inherited():
            if f"{inside(id)}." in f"{call['id']}.":
                self._run.accept(call["id"])
                self._accept_inside(call["id"])

    async def _claim(self, send: Send, ask: Ask | None) -> Begun | None:
        try:
            return await send(self.begin)
        except Uncertain as uncertain:
            if ask is None or uncertain.call["state"] != "started":
                raise
            probe = await _answered(ask, uncertain.call)
            return await send(partial(self._ask_probe, probe, uncertain.call))


async def _answered(ask: Ask, call: dict[str, Any]) -> Callable[[], Any]:
    """A probe that says what `ask` has found."""
    try:
        found = await ask(call)
    except CallFailed as failed:
        return partial(_raise, failed)
    return lambda: found


def _raise(error: Exception) -> NoReturn:
    raise error
