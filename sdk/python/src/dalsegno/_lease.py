"""The lease of this attempt, and the thread of heartbeats that keeps it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from dalsegno._errors import Refused


class Lease:
    """How long the gateway waits for the next heartbeat, as of the latest answer to any request.

    Invariant: the thread waits no longer than a third of the lease between two heartbeats, and a lease that becomes
    shorter ends its wait at once.
    """

    def __init__(self) -> None:
        self.ended = False
        """Whether this process has ended its attempt. Then heartbeats stop, and the refusal of one is no fence."""
        self._parking = self._stopped = False
        self._seconds: float = 0  # 0 until an answer names it
        self._shortened = threading.Semaphore(0)

    @property
    def ends_itself(self) -> bool:
        """Whether this process ends or has ended its attempt."""
        return self._parking or self.ended  # in this order: a park marks the end before it is over

    @contextmanager
    def parking(self) -> Generator[None, None, None]:
        """While a park is sent and not answered. Heartbeats go on, and the refusal of one says nothing: the answer to
        the park says whether the attempt is over."""
        self._parking = True
        try:
            yield
        finally:
            self._parking = False

    def observe(self, answer: Mapping[str, Any]) -> None:
        """Takes the lease from an answer of the gateway, if it names one."""
        previous, self._seconds = self._seconds, answer.get("leaseSeconds", self._seconds)
        if self._seconds < previous:
            self._shortened.release()

    def start(self, beat: Callable[[], object], interval: float) -> None:
        """Starts the thread: `beat` sends a heartbeat, `interval` is the longest wait between two, in seconds.

        A forked process has no such thread.
        """
        threading.Thread(target=self._keep, args=[beat, interval], daemon=True).start()

    def stop(self) -> None:
        """Ends the heartbeats, because the process leaves its run."""
        self._stopped = True
        self._shortened.release()

    def _keep(self, beat: Callable[[], object], interval: float) -> None:
        while not (self.ended or self._stopped):  # the first heartbeat is sent at once: it binds the lease
            with suppress(Refused):  # this process ended its attempt meanwhile, or is parking
                beat()
            self._shortened.acquire(timeout=min(interval, self._seconds / 3 or interval))
