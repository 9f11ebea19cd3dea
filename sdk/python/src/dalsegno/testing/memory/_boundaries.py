"""Attaching, boundaries, finishing and parking: what moves the head, and what ends an attempt."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from dalsegno.testing.memory import _calls, _records, _waits
from dalsegno.testing.memory._checks import (
    PAGE,
    Problem,
    check_different,
    check_fields,
    check_finish,
    check_list,
    check_name,
    check_names,
    check_number,
    check_park,
    check_payload,
    check_trigger,
    check_usage,
    check_uuid,
    invalid,
    strict,
)
from dalsegno.testing.memory._rows import Rows, Saved, payload_out

CONTRACT = 3
BOUNDARY = "state channels events calls openCalls records inbox usage trigger outcome".split()


def attach(rows: Rows, body: Mapping[str, Any], bearer: str) -> dict[str, Any]:
    """Lets the process of the current attempt in."""
    check_fields(body, (), ["instance"])
    if not re.fullmatch("[A-Za-z0-9_-]{43}", str(body["instance"])):
        raise invalid("`instance` must be 256 random bits in base64url without padding")
    if bearer != rows.token:
        raise Problem(409, "FENCED", "another attempt has taken over; stop all work and exit")
    rows.refuse_over()
    if not rows.live:
        raise Problem(409, "FENCED", "the attempt is over; stop all work and exit")
    if rows.instance not in (None, body["instance"]):
        rows.live = False
        raise Problem(409, "ATTEMPT_SPENT", "another process of this attempt attached before; exit")
    rows.instance = body["instance"]
    answer: dict[str, Any] = {
        "run": rows.name,
        "attempt": rows.attempt,
        "decision": "resume" if rows.head else "fresh",
        "branch": rows.branch,
        "unsettledCalls": [call.public() for call in _calls.unsettled(rows)],
        "completedCalls": [call.public() for call in _calls.completed_in_open_turn(rows)],
        "waits": [wait.public() for wait in _waits.shown_at_attach(rows)],
        "warnings": [],
        "heartbeatSeconds": rows.heartbeat_seconds,
        "contract": CONTRACT,
        **rows.flags(),
    }
    if rows.head:
        answer |= {"head": rows.head, "state": state_out(rows.channels)}
    return answer


def commit(rows: Rows, turn: int, boundary: str, body: Mapping[str, Any], raw: bytes, bearer: str) -> dict[str, Any]:
    """Commits a boundary, which may finish or park the run."""
    check_boundary(body, boundary)
    digest = hashlib.sha256(f"{turn} {boundary} ".encode() + raw).hexdigest()
    duplicate = digest == rows.head_digest
    rows.check_bearer(bearer, committed=duplicate)
    if duplicate:
        return {"result": "duplicate", "head": rows.head, **rows.flags()}
    rows.refuse_over()
    outcome = body.get("outcome") or {}
    _calls.refuse_open(rows, () if outcome else body.get("openCalls", ()))
    planned = rows.head is not None and rows.head["boundary"] == "plan"
    if turn != rows.open_turn or (boundary == "plan" and planned):
        raise Problem(409, "CONFLICT", f"the head is {rows.head}, so the next turn is {rows.open_turn}")
    _waits.check_unread(rows, body.get("inbox", ()))
    for id in outcome.get("park", {}).get("on", ()):
        _waits.known_wait(rows, id)
    _records.check_prefixes(rows, body.get("records", ()))
    _calls.plan(rows, turn, body.get("calls", ()))
    _apply(rows, turn, boundary, body, digest)
    answer = {"result": "ok", "head": rows.head, **rows.flags()}
    if "finish" in outcome:
        rows.finish, rows.finished_by = _finish(outcome["finish"]), bearer
    if "park" in outcome:
        _waits.park(rows, outcome["park"], bearer)
        answer["result"] = "parked"
    return answer


def check_boundary(body: Mapping[str, Any], boundary: str) -> None:
    """Errors: `Problem` where the body is no boundary."""
    check_fields(body, BOUNDARY, ["commitId"])
    check_uuid(body["commitId"], "`commitId`")
    planned = [_calls.check_planned(call) for call in check_list(body, "calls", 100)]
    if planned and boundary == "result":
        raise invalid("only a plan has calls")
    check_different(planned, "a call")
    channels = body.get("channels")
    if channels is not None:
        if "state" in body:
            raise invalid("a boundary has `state` or `channels`")
        _check_channels(channels)
    strict(check_list(body, "events"), "an event")
    check_list(body, "openCalls")
    _records.check_operations(check_list(body, "records"))
    check_different([check_number(it, "a message's position", 1) for it in check_list(body, "inbox")], "a message")
    check_usage(body)
    if body.get("trigger") is not None:
        check_trigger(body["trigger"])
    outcome = body.get("outcome")
    if outcome is not None:
        check_fields(outcome, ["finish", "park"])
        if len(outcome) != 1:
            raise invalid("an outcome is a finish or a park")
        if "finish" in outcome:
            check_finish(outcome["finish"])
        else:
            check_park(outcome["park"])


def _check_channels(changes: Any) -> None:
    check_fields(changes, ["full", "remove", "truncate", "set", "append"])
    removed = check_names(changes, "remove")
    parts = [changes.get(name, {}) for name in ("truncate", "set", "append")]
    if not all(isinstance(part, dict) for part in parts) or not isinstance(changes.get("full", False), bool):
        raise invalid("`truncate`, `set` and `append` are objects, and `full` is true or false")
    truncated, replaced, appended = parts
    for name in (*truncated, *replaced, *appended):
        check_name(name, "a channel's name")
    for length in truncated.values():
        check_number(length, "a number of items")
    if {*replaced} & {*appended}:
        raise invalid("a channel is set and appended to")
    if truncated and (changes.get("full") or {*truncated} & {*removed}):
        raise invalid("a channel is truncated that the same boundary removes")
    for payload in (*replaced.values(), *(it for name in appended for it in check_list(appended, name, 100 * PAGE))):
        check_payload(payload)


def _apply(rows: Rows, turn: int, boundary: str, body: Mapping[str, Any], digest: str) -> None:
    for event in body.get("events", ()):
        rows.position += 1
        rows.events.append({"position": rows.position, "turn": turn, "attempt": rows.attempt, "event": event})
    rows.spend(body.get("usage", {}))
    if "state" in body:
        rows.channels = {"state": {"value": {"json": body["state"]}}}
    elif body.get("channels"):
        rows.channels = _changed_channels(rows.channels, body["channels"])
    _records.apply(rows, body.get("records", ()))
    for position in body.get("inbox", ()):
        rows.messages[position - 1]["taken"] = turn
    text = f"{rows.head and rows.head['contentHash']}{digest}"
    hash = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    rows.head = {"turn": turn, "boundary": boundary, "position": rows.position, "contentHash": hash}
    rows.head_digest, rows.head_at = digest, rows.now()
    if boundary == "result":
        rows.saved[turn] = Saved(rows.head, digest, rows.head_at, rows.channels, rows.records, rows.batches)


def _changed_channels(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    channels = {} if changes.get("full") else dict(before)
    for name in changes.get("remove", ()):
        channels.pop(name, None)
    for name, length in changes.get("truncate", {}).items():
        if "list" in channels.get(name, {}):
            channels[name] = {"list": channels[name]["list"][:length]}
    for name, payload in changes.get("set", {}).items():
        channels[name] = {"value": payload}
    for name, payloads in changes.get("append", {}).items():
        channels[name] = {"list": [*channels.get(name, {}).get("list", []), *payloads]}
    return channels


def state_out(channels: Mapping[str, Any]) -> dict[str, Any]:
    """Channels as an answer has them."""
    return {
        name: {"list": [payload_out(it) for it in channel["list"]]}
        if "list" in channel
        else {"value": payload_out(channel["value"])}
        for name, channel in channels.items()
    }


def finish(rows: Rows, body: Mapping[str, Any], raw: bytes, bearer: str) -> dict[str, Any]:
    """Ends the run without a boundary."""
    check_fields(body, (), ["commitId", "finish"])
    check_uuid(body["commitId"], "`commitId`")
    check_finish(body["finish"])
    digest = hashlib.sha256(raw).hexdigest()
    duplicate = digest == rows.finish_digest
    rows.check_bearer(bearer, committed=duplicate)
    if not duplicate:
        rows.refuse_over()
        _calls.refuse_open(rows)
        rows.finish, rows.finish_digest, rows.finished_by = _finish(body["finish"]), digest, bearer
    result = "duplicate" if duplicate else "ok"
    return {"result": result, **({"head": rows.head} if rows.head else {}), **rows.flags()}


def _finish(finish: Mapping[str, Any]) -> dict[str, Any]:
    reason = "Completed" if finish["outcome"] == "succeeded" else "AgentFailed"
    return {"reason": reason, **{name: value for name, value in finish.items() if value is not None}}


def acknowledge_cancel(rows: Rows, bearer: str) -> dict[str, Any]:
    """The worker has seen the cancel: the run is over."""
    if not bearer or rows.cancel_acknowledged_by != bearer:
        rows.check_bearer(bearer)
        rows.refuse_over()
        if not rows.cancel:
            raise Problem(409, "CONFLICT", "nobody cancelled the run")
        rows.cancelled, rows.cancel_acknowledged_by, rows.live = True, bearer, False
    return {"result": "ok"}


def park(rows: Rows, body: Mapping[str, Any], bearer: str) -> dict[str, Any]:
    """Ends the attempt until waits are answered, or a suspend is lifted."""
    check_park(body)
    if rows.parks.get(body["parkId"]) == bearer:
        return {"result": "parked"}
    rows.check_bearer(bearer)
    rows.refuse_over()
    _calls.refuse_open(rows)
    on = body.get("on", [])
    for id in on:
        _waits.known_wait(rows, id)
    if not (rows.suspend or rows.cancel) and (not on or _waits.is_met(rows, on, body.get("mode", "all"))):
        return {"result": "ready"}
    _waits.park(rows, body, bearer)
    return {"result": "parked"}


def rewind(rows: Rows, turn: int) -> None:
    """Takes the run back to the end of a turn; 0 is its beginning. Calls keep their outcomes, and events their
    positions. Errors: `ValueError`."""
    if turn and turn not in rows.saved:
        raise ValueError(f"turn {turn} is not committed")
    saved = rows.saved.get(turn, Saved({}, "", 0, {}, {}, {}))
    rows.live = False
    rows.branch += 1
    rows.head = {**saved.head, "position": rows.position} if turn else None
    rows.head_digest, rows.head_at = saved.digest, saved.at
    rows.channels, rows.records, rows.batches = saved.channels, saved.records, saved.batches
    rows.saved = {at: kept for at, kept in rows.saved.items() if at <= turn}
    rows.events = [event for event in rows.events if event["turn"] <= turn]
    rows.waits = {id: wait for id, wait in rows.waits.items() if wait.turn <= turn}
    rows.parked_on = None
    for call in rows.calls.values():
        call.is_undone = call.is_undone or call.turn > turn
    for message in rows.messages:
        if message.get("taken", 0) > turn:
            del message["taken"]
