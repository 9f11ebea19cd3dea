"""One attempt at a run, as an agent sees it."""

from __future__ import annotations

import functools
import secrets
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from dalsegno import _env, _leave, _records
from dalsegno._calls import Calls, Tool
from dalsegno._errors import Refused
from dalsegno._json import decode_channel, encode_channels
from dalsegno._lease import Lease
from dalsegno._records import Operations
from dalsegno._transport import Transport
from dalsegno._wire import Reaction, Refusal, react

HEARTBEAT_TIMEOUT_SECONDS = 2

AnyRun = TypeVar("AnyRun", bound="Run")


class Run:
    """One attempt at a run. Attach once per process, with `Run.attach()`.

    Every method that sends something returns when the gateway has answered, however long that takes. It raises
    `Refused` where the gateway refuses the request. Where another attempt has taken over, or the run is over, the
    process ends instead, at once and whatever the agent catches.
    """

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

    def __init__(self, heartbeat: bool = True, sigterm: bool = True) -> None:
        """Attaches: waits until the gateway lets this pod in, and takes over the run.

        Without `heartbeat` a process that hangs is found late. Without `sigterm` no handler is installed.
        """
        url, instance = _env.gateway_url(), secrets.token_urlsafe(32)
        run_id = url.path.rstrip("/").split("/")[-1]
        self.cancelled = self.suspending = self.at_limit = False
        self._lease = Lease()
        self._termination = _leave.Termination()
        self._transport = Transport(url, instance, on_answer=self._on_answer, on_refusal=self._on_refusal)
        self._calls = Calls(self._transport, key_prefix=f"{run_id}:")  # no other run has such keys
        if sigterm:
            self._termination.install()
        answer = self._transport.send("attach", {"instance": instance})
        self._take_over(answer)
        if heartbeat:
            self._lease.start(self._beat, answer["heartbeatSeconds"])

    @classmethod
    def attach(cls: type[AnyRun], heartbeat: bool = True, sigterm: bool = True) -> AnyRun:
        """Attaches this process to its run, and returns the run as its last committed turn left it.

        It waits until the gateway lets this pod in. `heartbeat` starts a thread that tells the gateway that the process
        lives: without it a process that hangs is found late. `sigterm` installs a handler for SIGTERM, see `stopping`.

        Errors: `Refused` if the gateway refuses for good.
        """
        return cls(heartbeat, sigterm)

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

    def commit(
        self,
        turn: int,
        state: Any = None,
        channels: Mapping[str, Any] | None = None,
        events: Iterable[Any] = (),
        usage: Mapping[str, int] | None = None,
        plan: bool = False,
        calls: Iterable[Mapping[str, Any]] = (),
        finish: Mapping[str, Any] | None = None,
        records: Operations = (),
        open_calls: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Commits a boundary of `turn`, its result or its `plan`; returns the gateway's answer once it is durable.

        state: the whole state.
        channels: only what changed: `{"set": {name: value}, "append": {name: [items]}, "truncate": {name: length},
            "remove": [names]}`. With neither, the state stays as it is.
        events: what happened, in order, for people.
        usage: what this boundary alone spent: `{"tokensIn", "tokensOut", "toolCalls", "costMicroUSD"}`.
        plan: commits the turn's plan; its result follows.
        calls: the calls of a plan: `[{"id", "policy", "arguments"}]`, each with a `"key"` if it shall have its own.
        finish: ends the run: `{"outcome": "succeeded" | "failed", "reason", "message", "output"}`.
        records: operations, as `write_records` takes them, that are applied with the boundary or not at all.
        open_calls: ids of started calls of this attempt that may stay without an outcome. Without them the boundary is
            refused while a call with the policy `probe` or `ask` has none. A finish is refused even with them.
        """
        answer = self._transport.send(
            f"turns/{turn}/plan" if plan else f"turns/{turn}",
            {
                "commitId": str(uuid.uuid4()),
                "state": state,
                "channels": channels and encode_channels(channels),
                "events": list(events),
                "usage": usage,
                "records": _records.encode(records),
                "calls": self._calls.with_keys(calls),
                "openCalls": list(open_calls) or None,
                "outcome": finish and {"finish": finish},
            },
        )
        self.head = answer["head"]
        self.planned = plan
        self.turn = turn if plan else turn + 1
        self._lease.ended = bool(finish)
        return answer

    def call(self, id: str, *, policy: str, tool: Tool, key: str | None = None, arguments: Any = None) -> Any:
        """Runs `tool(key, arguments)` unless its outcome is known; returns its result, new or stored.

        policy: what to do where the outcome is unknown: `retrySameKey`, `probe`, `ask` or `readOnly`.
        key: the idempotency key; by default it is made of the run's id and `id`.

        Errors: `CallFailed` and `KeyRefused` as the tool raised them, now or earlier; `Uncertain` where the tool may
        have run and must not run again. Any other exception of the tool passes through and leaves the outcome unknown.
        """
        return self._calls.call(id, policy, tool, key, arguments)

    def complete(self, id: str, outcome: str, result: Any = None) -> None:
        """Records how a tool ended where `call` could not, because its result was too large or not JSON.

        outcome: `completed`, `failed` or `keyRefused`. Errors: `KeyError` where this process has no claim on the call.
        """
        self._calls.complete(id, outcome, result)

    def settle(self, id: str, outcome: str, reason: str, result: Any = None) -> None:
        """Records what a probe found out about an uncertain call: `completed` or `failed`, and how it was found."""
        self._calls.settle(id, outcome, reason, result)

    def write_records(self, operations: Operations) -> None:
        """Applies a batch of at most 1,000 operations, all or none; it is durable on return.

        operations: `[{"put" | "putIfAbsent": {"space", "key", "value"}}, {"append": {"space", "key", "entryId",
            "value"}}, {"delete": {"space", "key"}}]`.
        """
        _records.write(self._transport, operations)

    def records(self, space: str, prefix: str = "") -> Iterator[dict[str, Any]]:
        """Yields the entries under keys that begin with `prefix`, by key and then as they were added.

        Each is `{"key", "entryId", "value", "turn"}`; only an appended one has an `entryId`. Pages are fetched as
        needed.
        """
        return _records.read(self._transport, space, prefix)

    def finish(self, outcome: str, **more: Any) -> None:
        """Ends the run where there is no new state.

        outcome: `succeeded` or `failed`. more: `reason`, `message` and `output`.
        """
        self._transport.send("finish", {"commitId": str(uuid.uuid4()), "finish": {"outcome": outcome, **more}})
        self._lease.ended = True

    def park(self) -> bool:
        """Ends the attempt of a suspended run; returns whether the attempt is over.

        If it is over, exit with 0: the gateway accepts nothing more from this process, and a later attempt continues
        after the head. If nobody suspends the run any more, the attempt goes on. If the run was cancelled, the park
        acknowledges the cancel.

        Errors: `Refused` with `UNSETTLED_CALLS` while the outcome of a call is unknown: of an earlier attempt's call,
        or of a call of this process with the policy `probe` or `ask`. Then the attempt goes on.
        """
        self._lease.parking = True
        try:
            answer = self._transport.send("park", {"parkId": str(uuid.uuid4())})
            parked: bool = answer["result"] == "parked"
            if parked:
                self._lease.ended = True
            else:
                self.suspending = False
            return parked
        finally:
            self._lease.parking = False

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
        self.at_limit = answer.get("limit", self.at_limit)
        self.cancelled = self.cancelled or answer.get("cancel", False)
        self._lease.observe(answer)

    def _on_refusal(self, name: str, refusal: Refusal) -> None:
        """Ends the process, raises `Refused`, or returns to have the request sent again: see `react`."""
        ends_itself = self._lease.parking or self._lease.ended  # in this order: a park marks the end before it is over
        reaction = react(name, refusal, ends_itself)
        if reaction is Reaction.EXIT:
            _leave.exit_over(refusal.code, refusal.detail)
        if reaction is Reaction.RAISE:
            raise Refused(refusal.code, f"{name}: {refusal.detail}")
