"""The one thread that sends the requests of a graph."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from dalsegno._portal import Portal
from dalsegno._run import Run
from dalsegno.aio import AsyncRun

P = ParamSpec("P")
R = TypeVar("R")


class Io:
    """Runs functions in one thread, one after the other.

    LangGraph saves from threads that live as long as a step. Here all requests use the one connection of one thread, and
    what that thread alone touches needs no lock. A saver and a guard of one run share the thread, and an asynchronous
    agent uses it for all of its requests.
    """

    def __init__(self, run: Run[Any] | AsyncRun[Any]) -> None:
        self.run: Run[Any] = run.sync if isinstance(run, AsyncRun) else run
        """The run below. Its methods block."""
        self._portal = Portal.of(self.run)
        self._thread_id = 0

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function in the thread, and waits for its result. It may be called in the thread itself."""
        if threading.get_ident() == self._thread_id:
            return function(*args, **kwargs)
        return self._portal.call_from_thread(self._enter, lambda: function(*args, **kwargs))

    async def acall(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same for asyncio. If the `await` is cancelled, the function goes on."""
        return await self._portal.call(self._enter, lambda: function(*args, **kwargs))

    def _enter(self, function: Callable[[], R]) -> R:
        self._thread_id = threading.get_ident()
        return function()
