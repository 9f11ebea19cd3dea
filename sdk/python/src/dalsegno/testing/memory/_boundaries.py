"""Attaching, boundaries, finishing and parking: what moves the head, and what ends an attempt."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

from dalsegno.testing.memory import _calls, _records, _waits
from dalsegno.testing.memory._rows import Problem, Rows, invalid, only, payload_in, payload_out, strict

BOUNDARY = "state channels events calls openCalls records inbox usage trigger outcome".split()


def attach(rows: Rows, body: Mapping[str, Any], bearer: str) -> dict[str, Any]:
    """Lets the process of the current attempt in."""
    only(body, (), ["instance"])
    if rows.over:
        raise Problem(409, "FINISHED", "the run is finished and accepts no further calls; exit")
    if bearer != rows.token:
        raise Problem(409, "FENCED", "another attempt has taken over; stop all work and exit")
    if not rows.live:
        raise Problem(503, "NOT_READY", "the pod is not recorded yet")
    if rows.instance not in (None, body["instance"]):
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
        "contract": 2,
        **rows.flags(),
    }
    if rows.head:
        answer |= {"head": rows.head, "state": state_out(rows.channels)}
    return answer


def commit(rows: Rows, turn: int, boundary: str, body: Mapping[str, Any], raw: bytes, bearer: str) -> dict[str, Any]:
    """Commits a boundary, which may finish or park the run."""
    only(body, BOUNDARY, ["commitId"])
    if "calls" in body and body["calls"] and boundary == "result":
        raise invalid("only a plan has calls")
    if body.get("state") is not None and body.get("channels"):
        raise invalid("a boundary has `state` or `channels`")
    digest = hashlib.sha256(f"{turn} {boundary} ".encode() + raw).hexdigest()
    duplicate = digest == rows.head_digest
    _check_bearer(rows, bearer, committed=duplicate)
    if duplicate:
        return {"result": "duplicate", "head": rows.head, **rows.flags()}
    if rows.over:
        raise finished()
    outcome = body.get("outcome") or {}
    _calls.refuse_unsettled(rows, body.get("openCalls") or (), ends=bool(outcome))
    planned = rows.head is not None and rows.head["boundary"] == "plan"
    if turn != rows.open_turn or (boundary == "plan" and planned):
        raise Problem(409, "CONFLICT", f"the head is {rows.head}, so the next turn is {rows.open_turn}")
    changed = copy.deepcopy(rows)
    _apply(changed, turn, boundary, body, digest)
    if "park" in outcome:
        _waits.check_park(changed, outcome["park"])
    vars(rows).update(vars(changed))
    answer = {"result": "ok", "head": rows.head, **rows.flags()}
    if "finish" in outcome:
        rows.finish, rows.finished_by = _finish(outcome["finish"]), bearer
    if "park" in outcome:
        _waits.end_by_park(rows, outcome["park"], bearer)
        answer["result"] = "parked"
    return answer


def _apply(rows: Rows, turn: int, boundary: str, body: Mapping[str, Any], digest: str) -> None:
    for event in body.get("events") or ():
        rows.events.append(
            {
                "position": len(rows.events) + 1,
                "turn": turn,
                "attempt": rows.attempt,
                "event": strict(event, "an event"),
            }
        )
    for name, amount in (body.get("usage") or {}).items():
        rows.usage[name] = rows.usage.get(name, 0) + amount
    if "state" in body:
        rows.channels = {"state": {"value": {"json": body["state"]}}}
    elif body.get("channels"):
        _change_channels(rows.channels, body["channels"])
    _records.apply(rows, body.get("records") or ())
    _waits.take_messages(rows, body.get("inbox") or (), turn)
    for call in body.get("calls") or ():
        _calls.plan(rows, turn, call)
    text = f"{rows.head and rows.head['contentHash']}{digest}"
    rows.head = {
        "turn": turn,
        "boundary": boundary,
        "position": len(rows.events),
        "contentHash": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",
    }
    rows.head_digest = digest
    if boundary == "result":
        rows.states[turn] = copy.deepcopy(rows.channels)


def _change_channels(channels: dict[str, Any], changes: Mapping[str, Any]) -> None:
    only(changes, ["full", "remove", "truncate", "set", "append"])
    if changes.get("full"):
        channels.clear()
    for name in changes.get("remove") or ():
        channels.pop(name, None)
    for name, length in (changes.get("truncate") or {}).items():
        if "list" in channels.get(name, {}):
            channels[name] = {"list": channels[name]["list"][:length]}
    for name, payload in (changes.get("set") or {}).items():
        channels[name] = {"value": payload_in(payload)}
    for name, payloads in (changes.get("append") or {}).items():
        if name in (changes.get("set") or {}):
            raise invalid(f"channel {name!r} is set and appended to")
        kept = channels.get(name, {}).get("list", [])
        channels[name] = {"list": [*kept, *map(payload_in, payloads)]}


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
    only(body, (), ["commitId", "finish"])
    digest = hashlib.sha256(raw).hexdigest()
    if rows.finish_digest == digest:
        result = "duplicate"
    else:
        _check_bearer(rows, bearer)
        if rows.over:
            raise finished()
        _calls.refuse_unsettled(rows, (), ends=True)
        rows.finish, rows.finish_digest, rows.finished_by, result = _finish(body["finish"]), digest, bearer, "ok"
    return {"result": result, **({"head": rows.head} if rows.head else {}), **rows.flags()}


def _finish(finish: Mapping[str, Any]) -> dict[str, Any]:
    only(finish, ["reason", "message", "output"], ["outcome"])
    if finish["outcome"] not in ("succeeded", "failed"):
        raise invalid("the outcome of a finish is `succeeded` or `failed`")
    strict(finish.get("output"), "the output")
    reason = "Completed" if finish["outcome"] == "succeeded" else "AgentFailed"
    return {"reason": reason, **{name: value for name, value in finish.items() if value is not None}}


def acknowledge_cancel(rows: Rows, bearer: str) -> dict[str, Any]:
    """The worker has seen the cancel: the run is over."""
    if not rows.cancelled:
        _check_bearer(rows, bearer)
        if not rows.cancel:
            raise Problem(409, "CONFLICT", "nobody cancelled the run")
        rows.cancelled, rows.finished_by = True, bearer
    return {"result": "ok"}


def park(rows: Rows, body: Mapping[str, Any], bearer: str) -> dict[str, Any]:
    """Ends the attempt until waits are answered, or a suspend is lifted."""
    if rows.parks.get(body.get("parkId", "")) == bearer:
        return {"result": "parked"}
    _check_bearer(rows, bearer)
    if rows.over:
        raise finished()
    _waits.check_park(rows, body)
    _calls.refuse_unsettled(rows, (), ends=True)
    if not (rows.suspend or rows.cancel) and (
        not body.get("on") or _waits.is_met(rows, body["on"], body.get("mode", "all"))
    ):
        return {"result": "ready"}
    _waits.end_by_park(rows, body, bearer)
    return {"result": "parked"}


def check_worker(rows: Rows, bearer: str, reads: bool = False) -> None:
    """Errors: `Problem` if the sender is not the process of the current attempt, or the run is over."""
    _check_bearer(rows, bearer)
    if rows.over and not reads:
        raise finished()


def _check_bearer(rows: Rows, bearer: str, committed: bool | None = None) -> None:
    if not bearer:
        raise Problem(401, "UNAUTHENTICATED", "there is no bearer")
    if bearer != rows.finished_by and (bearer != rows.instance or not rows.live):
        raise Problem(409, "FENCED", "this attempt may not write any more; stop all work and exit", committed)


def finished() -> Problem:
    """The run is over."""
    return Problem(409, "FINISHED", "the run is finished and accepts no further calls; exit")


def rewind(rows: Rows, turn: int) -> None:
    """Takes the run back to the end of a turn; 0 is its beginning. Calls keep their outcomes; waits are undone."""
    if turn and turn not in rows.states:
        raise ValueError(f"turn {turn} is not committed")
    rows.channels = copy.deepcopy(rows.states[turn]) if turn else {}
    rows.states = {at: state for at, state in rows.states.items() if at <= turn}
    rows.branch += 1
    rows.events = [event for event in rows.events if event["turn"] <= turn]
    rows.waits = {id: wait for id, wait in rows.waits.items() if wait.opened_at <= (turn, "result")}
    rows.parked_on, rows.head_digest = None, ""
    for message in rows.messages:
        if message.get("taken", 0) > turn:
            del message["taken"]
    _records.rewind(rows, turn)
    rows.head = None
    if turn:
        digest = hashlib.sha256(f"{turn} {rows.branch}".encode()).hexdigest()
        rows.head = {
            "turn": turn,
            "boundary": "result",
            "position": len(rows.events),
            "contentHash": f"sha256:{digest}",
        }
