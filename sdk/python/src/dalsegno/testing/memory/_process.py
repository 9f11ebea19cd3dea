"""Processes of an agent, one attempt after the other, and where they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dalsegno.testing.memory._gateway import MemoryGateway

Answerer = Callable[["MemoryGateway"], object]
"""Answers what a run waits for, at its gateway."""

SHORT_WAIT_SECONDS = 2.0
"""A wait that the clock answers within so many seconds is waited for. A longer one ends `run`."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Kill -9 at a request of the worker."""

    request: int
    """Which request, from 0, counted over all attempts and without heartbeats."""
    side: str
    """`before` the gateway carries it out, or `after` it and before the answer."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How `MemoryGateway.run` ended."""

    why: str
    """Why the run gets no more processes: `it has ended`, or what it waits for."""
    exit_codes: list[int]
    """Of each attempt; -9 is a kill."""
    output: str = field(repr=False)
    """What all attempts wrote to stdout and stderr."""


class Processes:
    """The process of the current attempt."""

    def __init__(self, gateway: MemoryGateway) -> None:
        self._gateway = gateway
        self._process: subprocess.Popen[str] | None = None
        self._crash: CrashPoint | None = None
        self._lock = threading.Lock()

    def at_request(self, name: str, side: str) -> None:
        """Kills the process if this is where it shall be killed."""
        with self._lock:
            number = len(self._gateway.requests) - 1
            if self._crash is not None and (number, side) == (self._crash.request, self._crash.side):
                self._crash = None
                self.kill()
                if side == "before":
                    time.sleep(0.01)
                    raise ConnectionAbortedError("the process was killed")

    def kill(self) -> None:
        """Kills the process as a lost node does: SIGKILL."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        crash: CrashPoint | None,
        max_attempts: int,
        timeout: float,
        answer: Answerer | None,
    ) -> Ended:
        """See `MemoryGateway.run`."""
        self._crash = crash
        codes: list[int] = []
        output: list[str] = []
        while not self._gateway.why_no_process or self._wait_shortly() or self._is_answered(answer):
            assert len(codes) < max_attempts, f"{max_attempts} attempts, and the run has not ended:\n{''.join(output)}"
            self._gateway.start_attempt()
            with self._lock:  # its first requests wait until it can be killed
                process = subprocess.Popen(
                    command,
                    env={**environment, **self._gateway.environment},
                    text=True,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                self._process = process
            try:
                output.append(process.communicate(timeout=timeout)[0])
            finally:
                self.kill()
            codes.append(process.returncode)
            self._gateway.end_attempt()
        return Ended(self._gateway.why_no_process, codes, "".join(output))

    def _is_answered(self, answer: Answerer | None) -> bool:
        """Lets `answer` do what a person or the clock does. Returns whether the run gets a process now."""
        if answer is None or self._gateway.rows.over:
            return False
        answer(self._gateway)
        return not self._gateway.why_no_process

    def _wait_shortly(self) -> bool:
        """Waits for a wait that the clock answers soon. Returns whether the run gets a process now."""
        rows = self._gateway.rows
        on = rows.parked_on[0] if rows.parked_on else []
        times = [at for id in on for at in (rows.waits[id].wake, rows.waits[id].deadline) if at is not None]
        left = min(times, default=float("inf")) - rows.now()
        if left > SHORT_WAIT_SECONDS:
            return False
        time.sleep(max(left, 0) + 0.01)
        self._gateway.advance(0)
        return not self._gateway.why_no_process


def crash_points(
    new_gateway: Callable[[], MemoryGateway],
    command: Sequence[str | os.PathLike[str]],
    *,
    every: int = 1,
    environment: Mapping[str, str] | None = None,
    answer: Answerer | None = None,
) -> Iterator[tuple[CrashPoint | None, MemoryGateway, Ended]]:
    """Runs an agent once without a crash, and then once for each request, before it and after it, with a crash there.

    Yields where the agent was killed (`None` at first), the gateway, and how the run ended; the gateway is closed when the
    next one is asked for.

    every: 2 takes each second request, for a long agent.
    environment: more variables for the agent, such as those of a fake model.
    answer: called with the gateway when the run waits, as in `MemoryGateway.run`. The requests after an answer are counted
        too, so what comes after an approval is killed as well. Without it an agent runs up to its first wait.
    """
    with new_gateway() as gateway:
        ended = gateway.run(command, environment=environment, answer=answer)
        requests = len(gateway.requests)
        yield None, gateway, ended
    for number in range(0, requests, every):
        for side in ("before", "after"):
            point = CrashPoint(number, side)
            with new_gateway() as gateway:
                yield point, gateway, gateway.run(command, environment=environment, crash=point, answer=answer)
