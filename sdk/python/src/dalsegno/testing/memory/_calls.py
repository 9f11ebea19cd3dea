"""Tool calls: claims and their verdicts, results, and what an unknown outcome stops."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from dalsegno.testing.memory._rows import Call, Problem, Rows, invalid, only, strict

POLICIES = ("retrySameKey", "readOnly", "probe", "ask")


def plan(rows: Rows, turn: int, fields: Mapping[str, Any]) -> None:
    """Stores a planned call. A call that exists and that nobody has claimed moves to this turn."""
    only(fields, ["arguments"], ["id", "policy", "key"])
    known = rows.calls.get(fields["id"])
    if known is None:
        rows.calls[fields["id"]] = _new(fields["id"], turn, fields)
        return
    _compare(known, fields)
    if known.state == "planned":
        known.turn = turn


def claim(rows: Rows, id: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Says whether the tool may run."""
    only(body, ["key", "arguments", "approval"], ["claimId", "policy"])
    call = rows.calls.get(id)
    if call is None:
        if not body.get("key"):
            raise invalid(f"call {_quoted(id)} is new, and has no key")
        call = _new(id, rows.open_turn, body)
    else:
        _compare(call, body)
    verdict = _verdict(rows, call, body["claimId"])
    if body.get("approval") and verdict != "done":
        _use_approval(rows, call, body["approval"])
    rows.calls[id] = call
    if verdict == "go":
        call.state, call.claim, call.attempt = "started", body["claimId"], rows.attempt
    return {"verdict": verdict, "call": call.public()}


def _verdict(rows: Rows, call: Call, claim: str) -> str:
    if call.state in ("completed", "failed"):
        return "done"
    if call.state == "keyRefused":
        return "uncertain"
    if call.state == "planned" or (call.claim == claim and call.attempt == rows.attempt):
        return "go"
    repeatable = call.policy in ("retrySameKey", "readOnly")
    return "go" if repeatable and call.attempt < rows.attempt else "uncertain"


def _use_approval(rows: Rows, call: Call, approval: str) -> None:
    wait = rows.waits.get(approval)
    if wait is None or wait.kind != "approval" or (wait.answer or {}).get("outcome") not in ("approved", "changed"):
        raise Problem(409, "APPROVAL_NOT_GRANTED", f"approval {_quoted(approval)} is not granted")
    if wait.used_by not in (None, call.id):
        raise Problem(409, "APPROVAL_SPENT", f"another call has used the approval {_quoted(approval)}")
    wait.used_by = call.id


def complete(rows: Rows, id: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Stores how a tool ended."""
    only(body, ["result"], ["claimId", "outcome"])
    if body["outcome"] not in ("completed", "failed", "keyRefused"):
        raise invalid("the outcome of a call is `completed`, `failed` or `keyRefused`")
    result = strict(body.get("result"), "a result")
    call = _known(rows, id)
    if call.state == "started" and call.claim != body["claimId"]:
        raise Problem(409, "CONFLICT", f"another claim holds the call {_quoted(id)}")
    return {"result": _end(rows, call, body["outcome"], result)}


def settle(rows: Rows, id: str, body: Mapping[str, Any], person: bool = False) -> dict[str, Any]:
    """Stores what was found out about a call whose outcome is unknown."""
    only(body, ["result"], ["outcome", "reason"])
    if body["outcome"] not in ("completed", "failed"):
        raise invalid("a call is settled as `completed` or `failed`")
    call = _known(rows, id)
    if call.state == "planned":
        raise Problem(409, "CONFLICT", f"call {_quoted(id)} was never claimed")
    if not person and call.state in ("started", "keyRefused") and (call.policy == "ask" or call.state == "keyRefused"):
        raise Problem(409, "CONFLICT", f"only a person may settle call {_quoted(id)}")
    if person and call.state == "keyRefused":
        call.state = "started"
    return {"result": _end(rows, call, body["outcome"], strict(body.get("result"), "a result"))}


def _end(rows: Rows, call: Call, outcome: str, result: Any) -> str:
    if call.state == "started":
        call.state, call.result, call.closed_turn = outcome, result, rows.open_turn
        return "ok"
    if (call.state, call.result) == (outcome, result):
        return "duplicate"
    raise Problem(409, "CONFLICT", f"call {_quoted(call.id)} has ended otherwise")


def unsettled(rows: Rows) -> list[Call]:
    """The calls of earlier attempts whose outcome is unknown."""
    return [
        call
        for call in rows.calls.values()
        if call.state == "keyRefused" or (call.state == "started" and call.attempt < rows.attempt)
    ]


def completed_in_open_turn(rows: Rows) -> list[Call]:
    """The calls of the open turn that are over."""
    return [
        call
        for call in rows.calls.values()
        if call.state in ("completed", "failed") and rows.open_turn in (call.turn, call.closed_turn)
    ]


def refuse_unsettled(rows: Rows, open_calls: Iterable[str], ends: bool) -> None:
    """Errors: `Problem` while the outcome of a call stops a boundary, or what ends the attempt."""
    if any(call.state == "keyRefused" or call.policy != "readOnly" for call in unsettled(rows)):
        raise Problem(409, "UNSETTLED_CALLS", "the outcome of an earlier attempt's call is unknown")
    excused = () if ends else tuple(open_calls)
    for call in rows.calls.values():
        if call.state == "started" and call.policy in ("probe", "ask") and call.id not in excused:
            raise Problem(409, "UNSETTLED_CALLS", f"call {_quoted(call.id)} has no outcome")


def _new(id: str, turn: int, fields: Mapping[str, Any]) -> Call:
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,128}", id):
        raise invalid("an id has 1 to 128 characters of A-Z a-z 0-9 . _ : -")
    if fields["policy"] not in POLICIES:
        raise invalid(f"unknown policy {fields['policy']!r}")
    if not isinstance(fields["key"], str) or not 1 <= len(fields["key"]) <= 256:
        raise invalid("a key has 1 to 256 characters")
    return Call(id, turn, fields["policy"], fields["key"], arguments=strict(fields.get("arguments"), "the arguments"))


def _compare(call: Call, fields: Mapping[str, Any]) -> None:
    """What was stored first stays. A claim without a key or arguments has those of the call."""
    if fields.get("key") not in (None, call.key):
        raise invalid(f"call {_quoted(call.id)} has another key")
    if fields["policy"] != call.policy:
        raise invalid(f"call {_quoted(call.id)} has another policy: {call.policy}")
    given = fields.get("arguments")
    if given is not None and call.arguments is not None and given != call.arguments:
        raise invalid(f"call {_quoted(call.id)} has other arguments; claim it with its own arguments or without any")


def _known(rows: Rows, id: str) -> Call:
    if id not in rows.calls:
        raise Problem(404, "NOT_FOUND", f"there is no call {_quoted(id)}")
    return rows.calls[id]


def _quoted(id: str) -> str:
    return f'"{id}"'
