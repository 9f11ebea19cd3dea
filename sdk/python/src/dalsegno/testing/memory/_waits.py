"""Waits, messages and parks: what a run without a process waits for, and how it is woken."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from dalsegno.testing.memory._checks import WAITS, Problem, check_wait, invalid, parse_time
from dalsegno.testing.memory._rows import Rows, Wait, rfc3339

UNKNOWN_RESET_SECONDS = 60
LATEST_RESET_SECONDS = 86_400


def open_wait(rows: Rows, id: str, body: Mapping[str, Any], raw: bytes, bearer: str) -> dict[str, Any]:
    """Opens a wait, or returns the one that these bytes have opened."""
    check_wait(body)
    rows.check_bearer(bearer)
    rows.refuse_over()
    digest = hashlib.sha256(raw).hexdigest()
    known = rows.waits.get(id)
    if known is not None:
        if known.digest != digest:
            raise invalid(f'wait "{id}" was opened with something else')
        return known.public()
    if sum(wait.answer is None for wait in rows.waits.values()) >= WAITS:
        raise Problem(409, "TOO_MANY_WAITS", "the run has as many open waits as it may have")
    now = rows.now()
    wait = Wait(id, dict(body), digest, rows.open_turn, now)
    if body.get("deadlineSeconds") is not None:
        wait.deadline = now + body["deadlineSeconds"]
    if wait.kind == "until":
        wait.wake = parse_time(body["time"])
    if wait.kind == "rateLimit":
        reset = parse_time(body["resetTime"]) if body.get("resetTime") else now + UNKNOWN_RESET_SECONDS
        wait.wake = min(max(reset, now), now + LATEST_RESET_SECONDS)
    rows.waits[id] = wait
    if wait.kind == "message":
        _answer_by_message(rows, wait)
    tick(rows)
    return wait.public()


def tick(rows: Rows) -> None:
    """Answers what the clock answers."""
    now = rows.now()
    for wait in rows.waits.values():
        if rows.over or wait.answer is not None:
            continue
        if wait.wake is not None and wait.wake <= now:
            answer(rows, wait, {"outcome": "elapsed"})
        elif wait.deadline is not None and wait.deadline <= now:
            _time_out(rows, wait)


def _time_out(rows: Rows, wait: Wait) -> None:
    parked = rows.parked_on is not None and wait.id in rows.parked_on[0]
    how = wait.request.get("onTimeout", "Answer")
    if how == "Answer":
        answer(rows, wait, {"outcome": "timedOut"})
    elif parked and not wait.timed_out:
        wait.timed_out = True
        if how == "Fail":
            rows.finish = {"outcome": "failed", "reason": "WaitTimedOut"}


def answer(rows: Rows, wait: Wait, fields: Mapping[str, Any]) -> None:
    """Answers an open wait, and wakes a run that was parked on it."""
    wait.answered = rows.now()
    wait.answer = {"outcome": fields["outcome"], "at": rfc3339(wait.answered), **fields}
    if rows.parked_on is not None and is_met(rows, *rows.parked_on):
        rows.parked_on = None


def is_met(rows: Rows, on: list[str], mode: str) -> bool:
    """Whether a run that parks on these waits need not wait."""
    answered = [rows.waits[id].answer is not None for id in on]
    return all(answered) if mode == "all" else not answered or any(answered)


def held_by_timeout(rows: Rows) -> str | None:
    """The id of a wait whose deadline holds the run."""
    return next((wait.id for wait in rows.waits.values() if wait.timed_out and wait.answer is None), None)


def shown_at_attach(rows: Rows) -> list[Wait]:
    """The open waits, and those that were answered since the head."""
    return [wait for wait in rows.waits.values() if wait.answer is None or wait.answered >= rows.head_at]


def known_wait(rows: Rows, id: str) -> Wait:
    """The wait with this id. Errors: `Problem`."""
    if id not in rows.waits:
        raise Problem(404, "NO_SUCH_WAIT", f'there is no wait "{id}"')
    return rows.waits[id]


def park(rows: Rows, park: Mapping[str, Any], bearer: str) -> None:
    """Ends the attempt by a park whose waits exist."""
    on: list[str] = list(park.get("on", ()))
    mode: str = park.get("mode", "all")
    rows.parks[park["parkId"]] = bearer
    rows.live = False
    rows.parked_on = (on, mode) if on and not is_met(rows, on, mode) else None
    if rows.cancel:
        rows.cancelled = True


def send(rows: Rows, value: Any, topic: str | None, author: str, id: str) -> int:
    """Stores a message, and answers the wait that it is for. Returns its position."""
    position = len(rows.messages) + 1
    message = {"position": position, "id": id, "value": value, "author": author, "at": rfc3339(rows.now())}
    rows.messages.append({**message, **({"topic": topic} if topic is not None else {})})
    waiting = [wait for wait in rows.waits.values() if wait.kind == "message" and wait.answer is None]
    parked = rows.parked_on[0] if rows.parked_on else []
    for wait in sorted(waiting, key=lambda wait: wait.id not in parked):
        if wait.request.get("topic") in (None, topic):
            answer(rows, wait, {"outcome": "message", "position": position})
            break
    return position


def _answer_by_message(rows: Rows, wait: Wait) -> None:
    """A message that no boundary has taken, and that answers no other wait, answers a new wait at once."""
    used = {(other.answer or {}).get("position") for other in rows.waits.values()}
    for message in rows.messages:
        free = "taken" not in message and message["position"] not in used
        if free and wait.request.get("topic") in (None, message.get("topic")):
            answer(rows, wait, {"outcome": "message", "position": message["position"]})
            return


def read_inbox(rows: Rows, after: int, limit: int) -> dict[str, Any]:
    """A page of the messages that no boundary has taken."""
    unread = [message for message in rows.messages if "taken" not in message and message["position"] > after]
    page = unread[:limit]
    more = len(unread) > len(page)
    return {"messages": page, **({"next": page[-1]["position"]} if more else {})}


def check_unread(rows: Rows, positions: Iterable[int]) -> None:
    """Errors: `Problem` where one is no unread message."""
    for position in positions:
        if position > len(rows.messages) or "taken" in rows.messages[position - 1]:
            raise invalid(f"{position} is the position of no unread message")
