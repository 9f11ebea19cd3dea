"""The life of one attempt: attaching, what a person asks of it, and how it ends."""

from __future__ import annotations

import functools
import secrets
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn

from dalsegno import _env, _json, _leave
from dalsegno._calls import Calls
from dalsegno._codec import Codec, S
from dalsegno._errors import AlreadyCommitted, AtLimit, Cancelled, Refused, Stopping, Suspended
from dalsegno._inbox import Message
from dalsegno._json import decode_channel
from dalsegno._lease import Lease
from dalsegno._transport import Transport
from dalsegno._waits import Wait, Waits
from dalsegno._wire import Reaction, Refusal, react

HEARTBEAT_TIMEOUT_SECONDS = 2

TURNS_CHANNEL = "dalsegno.turns"
"""The channel with the number of the agent's committed turns, where a boundary may hold more than one of them."""


@dataclass(frozen=True, slots=True)
class Head:
    """A committed boundary."""

    turn: int
    """The boundary's turn, as the gateway counts: from 1, and by one for each result."""
    boundary: str
    """`plan` or `result`."""
    position: int
    """How many events the run had after it."""
    content_hash: str
    """The hash over the run up to this boundary."""

    @staticmethod
    def decode(head: Mapping[str, Any]) -> Head:
        """The head of an answer."""
        return Head(head["turn"], head.get("boundary", "result"), head.get("position", 0), head.get("contentHash", ""))


class Attempt(Generic[S]):
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
    head: Head | None
    """The latest committed boundary; `None` on a fresh run."""
    unsettled_calls: list[dict[str, Any]]
    """Calls that an earlier attempt claimed, and whose outcome nobody knows."""
    completed_calls: list[dict[str, Any]]
    """Calls of the open turn that are over, with their results."""
    planned: bool
    """Whether `next_turn` has its plan already."""
    next_turn: int
    """The next turn to commit, from 1."""
    channels: dict[str, Any]
    """The committed channels when this attempt began: values, and lists of items."""
    state: S
    """The state of the agent, of the type that was given to `attach`. Change it inside of `with run.turn()`: the turn
    commits it. After an exception in a turn it is another object, with what the last good turn left."""
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

    def __init__(
        self, state: type[S] | None = None, *, sigterm: bool = True, store_timeout: float | None = None
    ) -> None:
        """Prepares an attempt. It sends nothing: `_attach` does."""
        if store_timeout is not None and store_timeout <= 0:
            raise ValueError("store_timeout: a number of seconds above 0")
        url, self._instance = _env.gateway_url(), secrets.token_urlsafe(32)
        run_id = url.path.rstrip("/").split("/")[-1]
        self.cancelled = self.suspending = self.at_limit = False
        self.inbox = self._read_to = 0
        self._codec = Codec(state)
        self._lease = Lease()
        self._termination = _leave.Termination()
        self._transport = Transport(
            url,
            self._instance,
            on_answer=self._on_answer,
            on_refusal=self._on_refusal,
            store_timeout=_env.store_timeout() if store_timeout is None else store_timeout,
        )
        self._calls = Calls(self._transport, key_prefix=f"{run_id}:")  # no other run has such keys
        self._waits = Waits(self._transport)
        if sigterm:
            self._termination.install()

    def _attach(self, heartbeat: bool) -> None:
        """Waits until the gateway lets this pod in, takes over the run, and adopts its calls."""
        answer = self._transport.send("attach", {"instance": self._instance})
        self._take_over(answer)
        if heartbeat:
            self._lease.start(self._beat, answer["heartbeatSeconds"])
        self._calls.adopt()

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
        self._flush()
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
        """Leaves the process after a cancel, a suspend or SIGTERM, and at a limit. `run.turn()` begins with it.

        It acknowledges a cancel. It parks a suspended run, and returns if the suspend was lifted. It also returns if
        calls of an earlier attempt are unsettled: the next step claims or settles them, and the check after that step
        parks. At a limit of the run it returns while this process has an open call with the policy `probe` or `ask`.

        Errors: `Cancelled`, `Suspended` and `AtLimit` (exit code 0), `Stopping` (143). As `park`, if this process has
        an open call with the policy `probe` or `ask`. An agent with such calls completes them when `suspending` becomes
        true.
        """
        if self.cancelled:
            self._lease.ended = True
            self._transport.send("cancelled")
            raise Cancelled("a person has cancelled the run")
        if self.suspending:
            self.suspend()
        if self.at_limit and not self._calls.has_open():
            self._flush_if_allowed()
            raise AtLimit("the run has reached one of its limits")
        if self.stopping:
            self._flush_if_allowed()
            raise Stopping("SIGTERM has come")

    def suspend(self) -> None:
        """Parks a suspended run and leaves the process. It returns if the suspend was lifted meanwhile.

        Calls of an earlier attempt that are unsettled are no error: it returns, because the next step handles them.
        Errors: `Suspended`; otherwise as `park`.
        """
        try:
            parked = self.park()
        except Refused as refused:
            if refused.code != "UNSETTLED_CALLS" or self._calls.has_open():
                raise
            return
        if parked:
            raise Suspended("a person has suspended the run")

    def fail(self, message: str, fatal: bool = False) -> NoReturn:
        """Exits with 1 and leaves a message for people, cut to 512 characters.

        fatal: more attempts would not help; the run is held for a person.
        """
        _leave.fail(message, fatal)

    def _flush(self) -> None:
        """Commits turns that are held back. An attempt by itself has none."""

    def _flush_if_allowed(self) -> None:
        """Commits turns that are held back. An open call forbids it: then the next attempt repeats them."""
        if not self._calls.has_open() and not self._unsettled():
            self._flush()

    def _unsettled(self) -> list[dict[str, Any]]:
        """The calls of earlier attempts that the gateway waits for."""
        unsettled = {call["id"] for call in self.unsettled_calls if call["policy"] not in ("readOnly", "retrySameKey")}
        open_calls = [call for call in self._calls.inherited() if call["state"] not in ("completed", "failed")]
        return [call for call in open_calls if call["id"] in unsettled]

    def _next_id(self, name: str) -> str:
        """An id that no other wait or call of the open turn has."""
        raise NotImplementedError

    def _take(self, messages: Iterable[Message]) -> None:
        """Lets the open turn take messages. An attempt by itself has none."""

    def _take_over(self, answer: dict[str, Any]) -> None:
        """Reads where to go on from the answer to attach. A state too large for that answer is fetched."""
        self.name, self.attempt, self.decision = answer["run"], answer["attempt"], answer["decision"]
        self.branch, self.warnings = answer["branch"], answer["warnings"]
        self.head = Head.decode(answer["head"]) if answer.get("head") else None
        self.unsettled_calls, self.completed_calls = answer["unsettledCalls"], answer["completedCalls"]
        self._waits.take_over(answer.get("waits", []))
        self.planned, self._open_turn = False, 1
        if self.head:
            self.planned = self.head.boundary == "plan"
            self._open_turn = self.head.turn if self.planned else self.head.turn + 1
        has_state = self.head is None or "state" in answer
        state = answer if has_state else self._transport.send("state", method="GET")
        self.channels = {name: decode_channel(channel) for name, channel in state.get("state", {}).items()}
        self.next_turn = self.channels.get(TURNS_CHANNEL, self._open_turn - 1) + 1
        self._calls.take_over(answer, self._open_turn, self.next_turn if self.planned else None)
        self._saved = _json.dumps(self.channels["state"]) if "state" in self.channels else None
        self._restore()

    def _restore(self) -> None:
        """Sets the state to what was committed last, or was kept by the last good turn."""
        self.state = self._codec.fresh() if self._saved is None else self._codec.decode(self._saved)

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
