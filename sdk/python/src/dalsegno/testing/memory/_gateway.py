"""`MemoryGateway`: the run, and what the operator and people do with it."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno.testing._http import Closing
from dalsegno.testing.memory import _boundaries, _calls, _waits
from dalsegno.testing.memory._process import Answerer, CrashPoint, Ended, Processes
from dalsegno.testing.memory._rows import Call, Rows
from dalsegno.testing.memory._server import Server


class MemoryGateway(Closing):
    """A gateway with one run. It serves until `close`, or the end of `with MemoryGateway() as gateway`.

    `run` starts an agent as processes, one attempt after the other. For an agent in this process, set `environment`
    (the fixture `dalsegno_gateway` of `dalsegno.testing.plugin` does) and call `start_attempt`. In this process a fence
    ends the whole process, so leave a run (`with attach()`) before the next attempt starts.
    """

    def __init__(self, input: Any = None, name: str = "test/agent") -> None:
        """input: the run's input, any JSON. name: `namespace/name` of the run."""
        self.rows = Rows(name, input)
        """What the gateway has stored, for assertions: `calls`, `records`, `events`, `usage`, `waits`, `messages`."""
        self._directory = tempfile.TemporaryDirectory(prefix="dalsegno-")
        self._processes = Processes(self)
        self._server = Server(self.rows, self._processes.at_request)
        self._run_id = str(uuid.uuid4())
        (self._files / "input").write_text(json.dumps(input))

    def close(self) -> None:
        """Kills a process that still runs, and stops to serve."""
        self._processes.kill()
        self._server.close()
        self._directory.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a worker of the current attempt. The file of the termination message is among them."""
        log = self._files / "termination-log"
        log.touch()
        return {
            "DALSEGNO_URL": self._server.url(self._run_id),
            "DALSEGNO_TOKEN_FILE": str(self._files / "token"),
            "DALSEGNO_INPUT_FILE": str(self._files / "input"),
            "DALSEGNO_RUN": self.rows.name,
            "DALSEGNO_ATTEMPT": str(self.rows.attempt),
            "DALSEGNO_TERMINATION_LOG": str(log),
        }

    # What the operator does.

    def start_attempt(self) -> int:
        """Ends the current attempt, as when its pod is lost, and starts the next one. Returns its number.

        Errors: `RuntimeError` where the run has ended, waits, or is held or suspended.
        """
        with self._server.changed:
            _waits.tick(self.rows)
            why = self.why_no_process
            if why:
                raise RuntimeError(f"the run gets no process: {why}")
            self.rows.attempt += 1
            self.rows.token, self.rows.instance, self.rows.live = secrets.token_urlsafe(16), None, True
            (self._files / "token").write_text(self.rows.token)
            return self.rows.attempt

    def end_attempt(self) -> None:
        """Ends the current attempt: whatever its process still sends is fenced."""
        with self._server.changed:
            self.rows.live = False
            if self.rows.cancel and not self.rows.over:
                self.rows.cancelled = True

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        environment: Mapping[str, str] | None = None,
        crash: CrashPoint | None = None,
        max_attempts: int = 20,
        timeout: float = 60,
        answer: Answerer | None = None,
    ) -> Ended:
        """Runs an agent as processes, one attempt after the other, until the run has ended or gets no more of them.

        command: a program and its arguments, or the path of a Python file. `dalsegno` can be imported in it.
        environment: more variables. crash: where the agent is killed, once. timeout: of each process, in seconds.
        answer: called with the gateway each time that the run gets no more processes and has not ended. It answers what the
            run waits for, such as by `approve`, and the next attempt begins. If it answers nothing, this returns.

        Errors: `AssertionError` after `max_attempts`; `subprocess.TimeoutExpired`; whatever `answer` raises.
        """
        words = [os.fspath(word) for word in command]
        if words[0].endswith(".py"):
            words = [sys.executable, *words]
        path = str(Path(dalsegno.__file__).parents[1])
        inherited = os.environ.get("PYTHONPATH")
        base = {**os.environ, "PYTHONPATH": os.pathsep.join([path, *([inherited] if inherited else [])])}
        return self._processes.run(words, {**base, **(environment or {})}, crash, max_attempts, timeout, answer)

    def advance(self, seconds: float) -> None:
        """Moves the gateway's clock on, so that waits for a time are answered."""
        with self._server.changed:
            self.rows.clock_offset += seconds
            _waits.tick(self.rows)
            self._server.changed.notify_all()

    def rewind(self, turn: int) -> None:
        """Takes the run back to the end of this turn, or to its beginning (0). The current attempt is fenced."""
        with self._server.changed:
            _boundaries.rewind(self.rows, turn)
            self._server.changed.notify_all()

    # What people do.

    def approve(self, id: str, *, by: str = "ann", reason: str | None = None, changes: Any = None) -> None:
        """Approves an approval that is open. With `changes` the outcome is `changed`. Errors: `KeyError`."""
        outcome = "approved" if changes is None else "changed"
        self._decide(id, {"outcome": outcome, "by": by, "reason": reason, "changes": changes})

    def deny(self, id: str, *, by: str = "ann", reason: str | None = None) -> None:
        """Denies an approval that is open. Errors: `KeyError`."""
        self._decide(id, {"outcome": "denied", "by": by, "reason": reason})

    def send(self, value: Any, topic: str | None = None, *, author: str = "ann", id: str | None = None) -> int:
        """Sends the run a message. Returns its position. Errors: `RuntimeError` if the run has ended."""
        with self._server.changed:
            _waits.tick(self.rows)
            if self.rows.over:
                raise RuntimeError("the run has ended")
            position = _waits.send(self.rows, value, topic, author, id or str(uuid.uuid4()))
            self._server.changed.notify_all()
            return position

    def suspend(self, on: bool = True) -> None:
        """Suspends the run, or lifts the suspend (`on=False`)."""
        self.rows.suspend = on

    def cancel(self) -> None:
        """Cancels the run. If it has no process, it is over at once. If it has ended, nothing happens."""
        with self._server.changed:
            if self.rows.over:
                return
            self.rows.cancel = True
            if not self.rows.live:
                self.rows.cancelled = True

    def reach_limit(self, on: bool = True) -> None:
        """Lets the run be at one of its limits, or raises the limit (`on=False`)."""
        self.rows.limit = on

    def settle(self, id: str, outcome: str, reason: str = "looked", result: Any = None) -> None:
        """Settles a call as a person: `completed` or `failed`. Errors: `Problem`, such as for a call that the current
        attempt may still complete."""
        with self._server.changed:
            _calls.settle(self.rows, id, {"outcome": outcome, "reason": reason, "result": result}, None)

    # What a test looks at.

    @property
    def state(self) -> Any:
        """What the last `state` of a boundary holds; `None` if there is none."""
        return self.rows.channels.get("state", {}).get("value", {}).get("json")

    @property
    def events(self) -> list[Any]:
        """The committed events, in order."""
        return [event["event"] for event in self.rows.events]

    @property
    def finish(self) -> dict[str, Any] | None:
        """How the run ended: `outcome`, `reason`, `message`, `output`; `None` before."""
        return self.rows.finish

    @property
    def calls(self) -> list[Call]:
        """The tool calls, in the order in which they were first made."""
        return list(self.rows.calls.values())

    @property
    def open_waits(self) -> list[str]:
        """The ids of the waits that nobody has answered."""
        return [wait.id for wait in self.rows.waits.values() if wait.answer is None]

    @property
    def requests(self) -> list[str]:
        """The requests of the worker, in order, without heartbeats. An id is `*`: `calls/*/claim`."""
        return self._server.requests

    @property
    def last_word(self) -> Any:
        """The termination message of the last process; `None` if it left none."""
        text = (self._files / "termination-log").read_text()
        return json.loads(text) if text else None

    @property
    def why_no_process(self) -> str:
        """Why the run gets no process: it has ended, waits, or is held or suspended. Empty if it gets one."""
        rows = self.rows
        if rows.over:
            return "it has ended"
        if (timed_out := _waits.held_by_timeout(rows)) is not None:
            return f"it is held: the wait {timed_out} has timed out"
        stuck = [call for call in _calls.unsettled(rows) if call.state == "keyRefused" or call.policy == "ask"]
        if stuck and not rows.live:
            return f"it is held: the outcome of the call {stuck[0].id} is unknown"
        if rows.suspend and not rows.live:
            return "it is suspended"
        if rows.limit and not rows.live:
            return "it is at a limit"
        if rows.parked_on is not None:
            return f"it waits for {', '.join(rows.parked_on[0])}"
        return ""

    @property
    def _files(self) -> Path:
        return Path(self._directory.name)

    def _decide(self, id: str, answer: dict[str, Any]) -> None:
        with self._server.changed:
            wait = self.rows.waits[id]
            if wait.kind != "approval" or wait.answer is not None or self.rows.over:
                raise KeyError(f"{id} is no open approval")
            known = {name: value for name, value in answer.items() if value is not None}
            _waits.answer(self.rows, wait, known)
            self._server.changed.notify_all()
