"""What the gateway in memory stores: one run, its attempts, and all that belongs to them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from dalsegno.testing.memory._checks import Problem


@dataclass
class Call:
    """A tool call. `claim` is the id of the claim that holds it, and `attempt` the attempt of that claim."""

    id: str
    turn: int
    policy: str
    key: str
    state: str = "planned"
    arguments: Any = None
    result: Any = None
    claim: str | None = None
    attempt: int = 0
    tool: str | None = None
    is_undone: bool = False
    """Whether a rewind undid its turn."""

    def public(self) -> dict[str, Any]:
        """The call as an answer describes it."""
        shown = {"id": self.id, "turn": self.turn, "policy": self.policy, "key": self.key, "state": self.state}
        more = {"tool": self.tool, "arguments": self.arguments, "result": self.result}
        return {**shown, **{name: value for name, value in more.items() if value is not None}}


@dataclass
class Wait:
    """A wait. `request` is the body that opened it; times are in seconds of the gateway's clock."""

    id: str
    request: dict[str, Any]
    digest: str
    turn: int
    """The turn that was open when it was opened."""
    opened: float
    deadline: float | None = None
    wake: float | None = None
    answer: dict[str, Any] | None = None
    answered: float = 0
    timed_out: bool = False
    used_by: str | None = None

    @property
    def kind(self) -> str:
        """Its kind."""
        kind: str = self.request["kind"]
        return kind

    def public(self, withdrawn: bool = False) -> dict[str, Any]:
        """The wait as an answer describes it. withdrawn: whether the run has ended."""
        state = "answered" if self.answer else "withdrawn" if withdrawn else "open"
        shown: dict[str, Any] = {"id": self.id, "kind": self.kind, "state": state}
        if self.answer:
            shown["answer"] = self.answer
        if self.kind == "approval":
            shown["proposalHash"] = f"sha256:{self.digest}"
        shown["openedAt"] = rfc3339(self.opened)
        times = {"deadline": self.deadline, "wakeTime": self.wake}
        return {**shown, **{name: rfc3339(at) for name, at in times.items() if at is not None}}


@dataclass(frozen=True)
class Saved:
    """What a rewind to the end of a turn brings back."""

    head: dict[str, Any]
    digest: str
    at: float
    channels: dict[str, Any]
    records: dict[tuple[str, str], list[dict[str, Any]]]
    batches: dict[str, str]


@dataclass
class Rows:
    """The rows of the run."""

    name: str
    input: Any
    attempt: int = 0
    token: str = ""
    instance: str | None = None
    """The secret of the current attempt's process; `None` before it attaches, and after the attempt has ended."""
    live: bool = False
    """Whether the current attempt may write."""
    head: dict[str, Any] | None = None
    head_digest: str = ""
    head_at: float = 0
    branch: int = 0
    channels: dict[str, Any] = field(default_factory=dict)
    """By name: `{"value": payload}` or `{"list": [payload]}`. It is replaced and not changed, as what it holds."""
    saved: dict[int, Saved] = field(default_factory=dict)
    """What there was after the result of each turn, for reads and rewinds."""
    events: list[dict[str, Any]] = field(default_factory=list)
    position: int = 0
    """Of the last event. It never decreases."""
    usage: dict[str, int] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    waits: dict[str, Wait] = field(default_factory=dict)
    records: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    """By space and key. It is replaced and not changed, as its lists. `number`: the order of all entries."""
    entries: int = 0
    """How many entries were written so far."""
    batches: dict[str, str] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    parks: dict[str, str] = field(default_factory=dict)
    """Ids of parks that ended an attempt, with the instance that sent them."""
    parked_on: tuple[list[str], str] | None = None
    suspend: bool = False
    cancel: bool = False
    limit: bool = False
    finish: dict[str, Any] | None = None
    finish_digest: str = ""
    finished_by: str | None = None
    cancelled: bool = False
    cancel_acknowledged_by: str | None = None
    lease_seconds: float = 15
    heartbeat_seconds: float = 5
    clock_offset: float = 0

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.finish is not None or self.cancelled

    @property
    def open_turn(self) -> int:
        """The next turn to commit."""
        if self.head is None:
            return 1
        turn: int = self.head["turn"]
        return turn if self.head["boundary"] == "plan" else turn + 1

    def check_bearer(self, bearer: str, committed: bool | None = None) -> None:
        """Errors: `Problem` if the sender is not the process of the current attempt."""
        if not bearer:
            raise Problem(401, "UNAUTHENTICATED", "there is no bearer")
        if bearer != self.finished_by and (bearer != self.instance or not self.live):
            raise Problem(409, "FENCED", "this attempt may not write any more; stop all work and exit", committed)

    def refuse_over(self) -> None:
        """Errors: `Problem` if the run has ended."""
        if self.over:
            raise Problem(409, "FINISHED", "the run is finished and accepts no further calls; exit")

    def spend(self, usage: Mapping[str, int]) -> None:
        """Adds to what the run has spent."""
        for name, amount in usage.items():
            self.usage[name] = self.usage.get(name, 0) + amount

    def now(self) -> float:
        """The gateway's clock, in seconds."""
        return time.time() + self.clock_offset

    def flags(self) -> dict[str, Any]:
        """What most answers say about the run."""
        newest = self.messages[-1]["position"] if self.messages else 0
        flags = {"suspend": self.suspend, "cancel": self.cancel, "limit": self.limit}
        return {**flags, "inbox": newest, "leaseSeconds": self.lease_seconds}


def rfc3339(at: float) -> str:
    """A time as the contract writes it."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat().replace("+00:00", "Z")


def payload_out(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A stored payload as it comes back: what is no JSON comes back as bytes."""
    if "json" in payload:
        try:
            json.dumps(payload["json"], allow_nan=False)
        except ValueError:
            text = base64.b64encode(json.dumps(payload["json"]).encode()).decode()
            return {"bytes": {"mediaType": "application/json5", "base64": text}}
    return dict(payload)
