"""The I/O thread of an asynchronous agent, and the watch over its event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from dalsegno._run import Run

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("dalsegno")

STALL_SECONDS = 30.0
"""After so long without a tick of the event loop its stack is logged, once for each stall."""

TICK_SECONDS = 1.0


class Portal:
    """One thread that sends the requests of an agent, one after the other.

    A cancelled `await` does not take a request back: it is sent, and the next one queues behind it. So a cancel never
    leaves two requests on their way whose order nobody knows.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dalsegno")
        self._leave: SystemExit | None = None  # what a request has raised, until somebody gets it

    @classmethod
    def of(cls, run: Run[Any]) -> Portal:
        """The portal of a run, which is made the first time. All that is sent for the run queues in it."""
        if run._portal is None:
            run._portal = cls()
        return run._portal

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function in the thread, and returns its result. It may be cancelled; the function runs all the same.

        If it then ends the process, the next call raises that.
        """
        future = asyncio.wrap_future(self.submit(self._guarded, functools.partial(function, *args, **kwargs)))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_ignore)
            raise
        except SystemExit:
            self._leave = None
            raise

    async def call_to_its_end(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `call`, but a cancel is raised when the function has ended, and only if it has raised nothing itself."""
        future = asyncio.wrap_future(self.submit(self._guarded, functools.partial(function, *args, **kwargs)))
        cancel: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancel = error
        try:
            result = future.result()
        except SystemExit:
            self._leave = None
            raise
        if cancel is not None:
            raise cancel
        return result

    def _guarded(self, function: Callable[[], R]) -> R:
        """The function, unless a request before it has ended the process."""
        if (leave := self._leave) is not None:  # the loop may take it at the same time
            raise leave
        try:
            return function()
        except SystemExit as leave:
            self._leave = leave
            raise

    def call_from_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `call`, for another thread than that of the loop: it blocks."""
        future = self.submit(self._guarded, functools.partial(function, *args, **kwargs))
        try:
            return future.result()
        except SystemExit:
            self._leave = None
            raise

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Queues the function."""
        return self._executor.submit(function, *args, **kwargs)

    def close(self) -> None:
        """Lets the thread end after what is queued."""
        self._executor.shutdown(wait=False)


def _ignore(future: asyncio.Future[Any]) -> None:
    """Takes the outcome of a request that nobody awaits any more."""
    if not future.cancelled():
        future.exception()


class LoopWatch:
    """Logs the stack of an event loop that has not run for `STALL_SECONDS`: something blocks it.

    Heartbeats have a thread of their own, so the attempt lives on. But nothing else of the agent does.
    """

    def __init__(self, stall_seconds: float = STALL_SECONDS) -> None:
        self._stall_seconds = stall_seconds
        self._thread_id = threading.get_ident()
        self._ticked = time.monotonic()
        self._stopped = threading.Event()
        self._handle: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._tick()
        threading.Thread(target=self._watch, name="dalsegno-watch", daemon=True).start()

    def stop(self) -> None:
        """Ends the watch."""
        self._stopped.set()
        if self._handle is not None:
            self._handle.cancel()

    def _tick(self) -> None:
        self._ticked = time.monotonic()
        self._handle = self._loop.call_later(min(TICK_SECONDS, self._stall_seconds / 4), self._tick)

    def _watch(self) -> None:
        logged: float | None = None
        while not self._stopped.wait(min(TICK_SECONDS, self._stall_seconds / 4)):
            ticked = self._ticked
            if time.monotonic() - ticked > self._stall_seconds and logged != ticked and not self._loop.is_closed():
                logged = ticked
                logger.warning(
                    "the event loop has not run for %.0f s; it is here:\n%s", self._stall_seconds, self._stack()
                )

    def _stack(self) -> str:
        """Where the loop's thread is: files, lines and functions, and no values."""
        frame: Any = sys._current_frames().get(self._thread_id)
        return "".join(traceback.format_stack(frame)) if frame is not None else "its thread has ended"
