"""What the gateway in memory stores: one run, its attempts, and all that belongs to them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any


class Problem(Exception):
    """A refusal of the gateway: status, code and detail, and whether a fenced boundary is in the store."""

    def __init__(self, status: int, code: str, detail: str, committed: bool | None = None) -> None:
        super().__init__(code, detail)
        self.status, self.code, self.detail, self.committed = status, code, detail, committed


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
    closed_turn: int = 0

    def public(self) -> dict[str, Any]:
        """The call as an answer describes it."""
        shown = {"id": self.id, "turn": self.turn, "policy": self.policy, "key": self.key, "state": self.state}
        payloads = {"arguments": self.arguments, "result": self.result}
        return {**shown, **{name: value for name, value in payloads.items() if value is not None}}


@dataclass
class Wait:
    """A wait. `request` is the body that opened it; times are in seconds of the gateway's clock."""

    id: str
    request: dict[str, Any]
    digest: str
    opened: float
    opened_at: tuple[int, str]
    deadline: float | None = None
    wake: float | None = None
    answer: dict[str, Any] | None = None
    answered_after: int = 0
    timed_out: bool = False
    used_by: str | None = None

    @property
    def kind(self) -> str:
        """Its kind."""
        kind: str = self.request["kind"]
        return kind

    def public(self) -> dict[str, Any]:
        """The wait as an answer describes it."""
        shown: dict[str, Any] = {"id": self.id, "kind": self.kind, "state": "answered" if self.answer else "open"}
        if self.answer:
            shown["answer"] = self.answer
        if self.kind == "approval":
            shown["proposalHash"] = f"sha256:{self.digest}"
        shown["openedAt"] = rfc3339(self.opened)
        times = {"deadline": self.deadline, "wakeTime": self.wake}
        return {**shown, **{name: rfc3339(at) for name, at in times.items() if at is not None}}


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
    branch: int = 0
    channels: dict[str, Any] = field(default_factory=dict)
    """By name: `{"value": payload}` or `{"list": [payload]}`."""
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The channels after the result of each turn, for reads and rewinds."""
    events: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    waits: dict[str, Wait] = field(default_factory=dict)
    records: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
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


def parse_time(text: Any) -> float:
    """A time in seconds. Errors: `Problem` with `INVALID`."""
    try:
        at = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        raise invalid(f"{text!r} is no time of RFC 3339") from None
    if at.utcoffset() is None:
        raise invalid(f"{text!r} has no time zone")
    return at.timestamp()


def invalid(detail: str) -> Problem:
    """A body or a path that does not follow the contract."""
    return Problem(400, "INVALID", detail)


def only(body: Mapping[str, Any], allowed: Iterable[str], required: Iterable[str] = ()) -> None:
    """Errors: `Problem` where a body has a field that the contract does not know, or lacks one."""
    unknown = sorted({*body} - {*allowed} - {*required})
    if unknown:
        raise invalid(f"unknown field {unknown[0]!r}")
    missing = [name for name in required if name not in body]
    if missing:
        raise invalid(f"missing field {missing[0]!r}")


def strict(value: Any, what: str) -> Any:
    """The value. Errors: `Problem` where it holds NaN or an infinity, which are no JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise invalid(f"{what} has a number that is no JSON") from None
    return value


def payload_out(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A stored payload as it comes back: what is no JSON comes back as bytes."""
    if "json" in payload:
        try:
            json.dumps(payload["json"], allow_nan=False)
        except ValueError:
            text = base64.b64encode(json.dumps(payload["json"]).encode()).decode()
            return {"bytes": {"mediaType": "application/json5", "base64": text}}
    return dict(payload)


def payload_in(payload: Any) -> dict[str, Any]:
    """A payload of a request. Errors: `Problem` where it is none."""
    if not isinstance(payload, dict) or len(payload) != 1 or next(iter(payload)) not in ("json", "bytes"):
        raise invalid('a payload is {"json": …} or {"bytes": …}')
    return payload
