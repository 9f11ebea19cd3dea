"""Waits: what a run asks of a person, the clock, the inbox or a provider, and the answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

from dalsegno._errors import Refused
from dalsegno._transport import Transport

POLL_SECONDS = 20
"""How long the gateway waits for an answer before it says that a wait is still open."""

TITLE_CHARACTERS = 128
"""Of an approval's title. The gateway refuses a longer one."""

TIMED = ("until", "rateLimit")
"""The kinds that the store's clock answers."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a wait. `reason` and `changes` are a person's words: see `as_user_turn`."""

    outcome: str
    """`approved`, `denied`, `changed`, `elapsed`, `message` or `timedOut`."""
    at: str
    """When it was answered, by the store's clock, as RFC 3339."""
    by: str | None = None
    """Who decided, as the API server has authenticated them."""
    reason: str | None = None
    """Why, in the words of the person who decided."""
    changes: Any = None
    """What to do instead of the proposal, where the outcome is `changed`."""
    position: int | None = None
    """The message's position in the inbox, where the outcome is `message`."""

    @property
    def granted(self) -> bool:
        """Whether a person agreed: to the proposal (`approved`), or to something else (`changed`, see `changes`)."""
        return self.outcome in ("approved", "changed")

    @property
    def timed_out(self) -> bool:
        """Whether the deadline passed before anybody answered. That is not a denial."""
        return self.outcome == "timedOut"


@dataclass(frozen=True, slots=True)
class Approval(Answer):
    """The answer of a person who was asked for an approval: look at `granted`, `timed_out`, `changes` and `reason`."""

    id: str = ""
    """The id of the approval. Give it to the call that it allows: `pay.approved_by(approval)(…)`."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait, as the store has it."""

    id: str
    kind: str
    """`approval`, `until`, `message` or `rateLimit`."""
    answer: Answer | None = None
    """`None` while the wait is open."""
    proposal_hash: str | None = None
    """What a decision on an `approval` names, so that nobody decides on another proposal."""


Answer.__module__ = Approval.__module__ = Wait.__module__ = "dalsegno"


class Waits:
    """The waits that this process knows, and the requests about them."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.known: dict[str, Wait] = {}
        """By id: what the answer to attach named, and what this process has opened or read since."""

    def take_over(self, waits: Iterable[Mapping[str, Any]]) -> None:
        """Takes the waits from the answer to attach."""
        for wait in waits:
            self._note(wait)

    def open(self, id: str, fields: Mapping[str, Any]) -> Wait:
        """Opens a wait, or returns the one that was opened with the same bytes.

        Agents compute a time anew in each attempt. So a wait for a time that was opened with another one is returned as
        it is: what was given first stays.
        """
        try:
            return self._note(self._transport.send(_path(id), fields))
        except Refused as refused:
            if refused.code != "INVALID" or fields["kind"] not in TIMED:
                raise
            first = self._find(id)
            if first is None or first.kind != fields["kind"]:
                raise
            return first

    def read(self, id: str, seconds: float = 0) -> Wait:
        """The wait as it is; while it is open, the gateway waits for its answer up to so many seconds."""
        poll = min(math.ceil(seconds), POLL_SECONDS)
        return self._note(self._transport.send(f"{_path(id)}?seconds={poll}", method="GET", held=poll))

    def _find(self, id: str) -> Wait | None:
        try:
            return self.read(id)
        except Refused:
            return None

    def _note(self, wait: Mapping[str, Any]) -> Wait:
        answer = wait.get("answer")
        noted = Wait(wait["id"], wait["kind"], answer and _answer(answer), wait.get("proposalHash"))
        self.known[noted.id] = noted
        return noted


def encode_seconds(duration: float | timedelta | None) -> int | None:
    """A duration in whole seconds, rounded up, as the contract has it."""
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    return None if duration is None else math.ceil(duration)


def encode_time(time: datetime | None) -> str | None:
    """A time as RFC 3339. Errors: `ValueError` without a time zone, because the store may be in another one."""
    if time is None:
        return None
    if time.utcoffset() is None:
        raise ValueError("a time needs its time zone, such as datetime.now(timezone.utc) + timedelta(hours=1)")
    return time.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _answer(answer: Mapping[str, Any]) -> Answer:
    fields = ("outcome", "at", "by", "reason", "changes", "position")
    return Answer(**{field: answer[field] for field in fields if field in answer})


def _path(id: str) -> str:
    return f"waits/{quote(id, safe='')}"
