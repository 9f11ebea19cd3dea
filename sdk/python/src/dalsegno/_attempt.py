"""The life of one attempt: attaching, what a person asks of it, and how it ends."""

from __future__ import annotations

import functools
import secrets
import sys
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from dalsegno import _env, _leave
from dalsegno._calls import Calls
from dalsegno._errors import AlreadyCommitted, Refused
from dalsegno._json import decode_channel
from dalsegno._lease import Lease
from dalsegno._transport import Transport
from dalsegno._waits import Answer, Wait, Waits
from dalsegno._wire import Reaction, Refusal, react

HEARTBEAT_TIMEOUT_SECONDS = 2

AnyAttempt = TypeVar("AnyAttempt", bound="Attempt")


class Attempt:
    """What `Run` is made of, apart from what an agent stores and asks for."""

    name: str
    """`namespace/name` of the run."""
    attempt: int
    """Number of this attempt, from 1."""
    decision: str
    """`fresh`: begin at turn 1. `resume`: continue after `head`."""
    branch: int
    """How often the run was rewound. Put it into the id of a call that shall be made again after a rewind."""
    warnings: list[dict[str, Any]]
    """What to log at the start: each has a `code` and a `message`."""
    head: dict[str, Any] | None
    """The latest committed boundary; `None` on a fresh run."""
    unsettled_calls: list[dict[str, Any]]
    """Calls that an earlier attempt claimed, and whose outcome nobody knows."""
    completed_calls: list[dict[str, Any]]
    """Calls of the open turn that are over, with their results."""
    planned: bool
    """Whether `turn` has its plan already."""
    turn: int
    """The next turn to commit, from 1."""
    channels: dict[str, Any]
    """The committed channels when this attempt began: values, and lists of items."""
    state: Any
    """What the last `commit(state=…)` held when this attempt began; `None` on a fresh run."""
    cancelled: bool
    """Whether a person asks to cancel the run, as of the latest answer. `check` acknowledges it."""
    suspending: bool
    """Whether a person has suspended the run: complete every open call with the policy `probe` or `ask`, commit or drop
    the current step, then `park` and exit. It becomes false again if the suspend is lifted."""
    at_limit: bool
    """Whether the run has reached one of its limits: commit or drop the current step, then exit with 0 within 30 s. It
    becomes false again if the limit is raised."""
    inbox: int
    """The position of the newest message to the run, as of the latest answer; 0 if none came."""

    def __init__(self, heartbeat: bool = True, sigterm: bool = True) -> None:
        """Attaches: waits until the gateway lets this pod in, and takes over the run.

        Without `heartbeat` a process that hangs is found late. Without `sigterm` no handler is installed.
        """
        url, instance = _env.gateway_url(), secrets.token_urlsafe(32)
        run_id = url.path.rstrip("/").split("/")[-1]
        self.cancelled = self.suspending = self.at_limit = False
        self.inbox = self._read_to = 0
        self._lease = Lease()
        self._termination = _leave.Termination()
        self._transport = Transport(url, instance, on_answer=self._on_answer, on_refusal=self._on_refusal)
        self._calls = Calls(self._transport, key_prefix=f"{run_id}:")  # no other run has such keys
        self._waits = Waits(self._transport)
        if sigterm:
            self._termination.install()
        answer = self._transport.send("attach", {"instance": instance})
        self._take_over(answer)
        if heartbeat:
            self._lease.start(self._beat, answer["heartbeatSeconds"])

    @classmethod
    def attach(
        cls: type[AnyAttempt],
        heartbeat: bool = True,
        sigterm: bool = True,
        on_resume: Callable[[AnyAttempt, dict[str, Answer]], object] | None = None,
    ) -> AnyAttempt:
        """Attaches this process to its run, and returns the run as its last committed turn left it.

        It waits until the gateway lets this pod in. `heartbeat` starts a thread that tells the gateway that the process
        lives: without it a process that hangs is found late. `sigterm` installs a handler for SIGTERM, see `stopping`.
        `on_resume(run, answers)` is called before this returns if the run goes on from a checkpoint or from waits, with
        the answers since the head by the ids of their waits: let the agent judge by its policy again.

        Errors: `Refused` if the gateway refuses for good, and whatever `on_resume` raises.
        """
        run = cls(heartbeat, sigterm)
        if on_resume and (run.head or run.waits):
            on_resume(run, {wait.id: wait.answer for wait in run.waits.values() if wait.answer})
        return run

    @functools.cached_property
    def input(self) -> Any:
        """The run's input, read as JSON when it is first asked for; `None` where there is none.

        Errors: `ValueError` where it is not JSON. Then read the file that `DALSEGNO_INPUT_FILE` names.
        """
        return _env.read_input()

    @property
    def stopping(self) -> bool:
        """Whether SIGTERM has come: commit, and leave within `dalsegno.GRACE_SECONDS`."""
        return self._termination.requested

    @property
    def waits(self) -> dict[str, Wait]:
        """The run's waits by id: the open ones, those answered since the head, and what this process asked for."""
        return self._waits.known

    def park(self, on: Iterable[str] = (), mode: str = "all") -> bool:
        """Ends the attempt until waits are answered; returns whether the attempt is over.

        on: ids of waits, which must all be answered, or any of them (`mode="any"`). Without ids it parks a suspended
            run.

        If the attempt is over, exit with 0: the gateway accepts nothing more from this process, and a later attempt
        continues after the head. If the waits are answered already, or nobody suspends the run any more, the attempt
        goes on. If the run is suspended or cancelled, the park acknowledges that.

        Errors: `Refused` with `UNSETTLED_CALLS` while the outcome of a call is unknown: of an earlier attempt's call,
        or of a call of this process with the policy `probe` or `ask`. Then the attempt goes on.
        """
        fields = park_fields(on, mode)
        with self._lease.parking():
            answer = self._transport.send("park", fields)
            parked: bool = answer["result"] == "parked"
            if parked:
                self._lease.ended = True
            elif "on" not in fields:
                self.suspending = False
            return parked

    def check(self) -> None:
        """Call it between two steps. It exits with 0 after a cancel, a suspend or at a limit, and with 143 after SIGTERM.

        It acknowledges a cancel. It parks a suspended run, and returns if the suspend was lifted. It also returns if
        calls of an earlier attempt are unsettled: the next step claims or settles them, and the check after that step
        parks. At a limit of the run it returns while this process has an open call with the policy `probe` or `ask`.

        Errors: as `park`, if this process has an open call with the policy `probe` or `ask`. An agent with such calls
        completes them when `suspending` becomes true.
        """
        if self.cancelled:
            self._lease.ended = True
            self._transport.send("cancelled")
            sys.exit(0)
        if self.suspending and self._park_between_steps():
            sys.exit(0)
        if self.at_limit and not self._calls.has_open():
            sys.exit(0)
        if self.stopping:
            sys.exit(_leave.SIGTERM_EXIT_CODE)

    def fail(self, message: str, fatal: bool = False) -> NoReturn:
        """Exits with 1 and leaves a message for people, cut to 512 characters.

        fatal: more attempts would not help; the run is held for a person.
        """
        _leave.fail(message, fatal)

    def _park_between_steps(self) -> bool:
        """As `park`. Calls of an earlier attempt that are unsettled are no error: the next step handles them."""
        try:
            return self.park()
        except Refused as refused:
            if refused.code != "UNSETTLED_CALLS" or self._calls.has_open():
                raise
            return False

    def _take_over(self, answer: dict[str, Any]) -> None:
        """Reads where to go on from the answer to attach. A state too large for that answer is fetched."""
        self.name, self.attempt, self.decision = answer["run"], answer["attempt"], answer["decision"]
        self.branch, self.warnings, self.head = answer["branch"], answer["warnings"], answer.get("head")
        self.unsettled_calls, self.completed_calls = answer["unsettledCalls"], answer["completedCalls"]
        self._waits.take_over(answer.get("waits", []))
        self.planned, self.turn = False, 1
        if self.head:
            self.planned = self.head["boundary"] == "plan"
            self.turn = self.head["turn"] if self.planned else self.head["turn"] + 1
            if "state" not in answer:
                answer = self._transport.send("state", method="GET")
        self.channels = {name: decode_channel(channel) for name, channel in answer.get("state", {}).items()}
        self.state = self.channels.get("state")

    def _beat(self) -> None:
        self._transport.send("heartbeat", timeout=HEARTBEAT_TIMEOUT_SECONDS)

    def _on_answer(self, answer: dict[str, Any]) -> None:
        """Takes from any answer what a person asks for, and the lease."""
        self.suspending = answer.get("suspend", self.suspending)
        self.cancelled = self.cancelled or answer.get("cancel", False)
        self.at_limit = answer.get("limit", self.at_limit)
        self.inbox = max(self.inbox, answer.get("inbox", 0))
        self._lease.observe(answer)

    def _on_refusal(self, name: str, refusal: Refusal) -> None:
        """Ends the process, raises `Refused`, or returns to have the request sent again: see `react`."""
        reaction = react(name, refusal, self._lease.ends_itself)
        if reaction is Reaction.EXIT:
            _leave.exit_over(refusal.code, refusal.detail)
        if reaction is Reaction.RAISE:
            error = AlreadyCommitted if refusal.committed else Refused
            raise error(refusal.code, f"{name}: {refusal.detail}")


def park_fields(on: Iterable[str], mode: str) -> dict[str, Any]:
    """The body of a park, or a boundary's. Without ids it has no mode either."""
    ids = list(on)
    return {"parkId": str(uuid.uuid4()), **({"on": ids, "mode": mode} if ids else {})}
