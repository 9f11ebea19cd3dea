"""Tool calls: claims and their verdicts, results, and what an unknown outcome stops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dalsegno.testing.memory._checks import (
    KEY_CHARS,
    Problem,
    check_fields,
    check_name,
    check_short,
    check_usage,
    check_uuid,
    check_word,
    invalid,
    strict,
)
from dalsegno.testing.memory._rows import Call, Rows

POLICIES = ("retrySameKey", "readOnly", "probe", "ask")


def check_planned(fields: Any) -> str:
    """The id of a call that a boundary plans. Errors: `Problem`."""
    check_fields(fields, ["arguments"], ["id", "policy", "key"])
    _check_call(fields)
    return check_name(fields["id"], "a call's `id`")


def plan(rows: Rows, turn: int, planned: Iterable[Mapping[str, Any]]) -> None:
    """Stores planned calls. One that exists and that nobody has claimed moves to this turn. Errors: `Problem`, and then
    nothing is changed."""
    planned = list(planned)
    for fields in planned:
        if fields["id"] in rows.calls:
            _compare(rows.calls[fields["id"]], fields)
    for fields in planned:
        call = rows.calls.setdefault(fields["id"], _new(fields["id"], turn, fields))
        if call.state == "planned":
            call.turn = turn


def claim(rows: Rows, id: str, body: Mapping[str, Any], bearer: str) -> dict[str, Any]:
    """Says whether the tool may run."""
    check_fields(body, ["key", "arguments", "approval", "tool"], ["claimId", "policy"])
    check_uuid(body["claimId"], "`claimId`")
    _check_call(body)
    approval, tool = body.get("approval"), body.get("tool")
    for name, text in ("approval", approval), ("tool", tool):
        if text is not None:
            check_short(text, f"`{name}`")
    rows.check_bearer(bearer)
    rows.refuse_over()
    if approval is not None:
        _check_approval(rows, id, approval)
    call = rows.calls.get(id)
    if call is None:
        if body.get("key") is None:
            raise invalid(f"call {_quoted(id)} is new, and has no key")
        call = rows.calls[id] = _new(id, rows.open_turn, body)
    else:
        _compare(call, body)
    verdict = _verdict(rows, call, body["claimId"])
    if verdict == "go":
        call.state, call.claim, call.attempt = "started", body["claimId"], rows.attempt
        if call.arguments is None:
            call.arguments = body.get("arguments")
        if call.tool is None:
            call.tool = tool
        if approval is not None:
            rows.waits[approval].used_by = id
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


def _check_approval(rows: Rows, id: str, approval: str) -> None:
    wait = rows.waits.get(approval)
    if wait is None or wait.kind != "approval" or (wait.answer or {}).get("outcome") not in ("approved", "changed"):
        raise Problem(409, "APPROVAL_NOT_GRANTED", f"approval {_quoted(approval)} is not granted")
    if wait.used_by not in (None, id):
        raise Problem(409, "APPROVAL_SPENT", f"another call has used the approval {_quoted(approval)}")


def complete(rows: Rows, id: str, body: Mapping[str, Any], bearer: str) -> dict[str, Any]:
    """Stores how a tool ended."""
    check_fields(body, ["result", "usage"], ["claimId", "outcome"])
    check_uuid(body["claimId"], "`claimId`")
    outcome = check_word(body["outcome"], ("completed", "failed", "keyRefused"), "`outcome`")
    result, usage = strict(body.get("result"), "a result"), check_usage(body)
    rows.check_bearer(bearer)
    call = _open_call(rows, id, outcome, result)
    if call is None:
        return {"result": "duplicate"}
    if call.state == "keyRefused":
        raise Problem(409, "CONFLICT", f"the tool refused the key of call {_quoted(id)}: only a person may settle it")
    if call.claim != body["claimId"] or call.attempt != rows.attempt:
        raise Problem(409, "CONFLICT", f"call {_quoted(id)} is not started under this claim")
    call.state, call.result = outcome, result
    rows.spend(usage)
    return {"result": "ok"}


def settle(rows: Rows, id: str, body: Mapping[str, Any], bearer: str | None) -> dict[str, Any]:
    """Stores what was found out about a call whose outcome is unknown. bearer: `None` if a person settles it."""
    check_fields(body, ["result"], ["outcome", "reason"])
    outcome = check_word(body["outcome"], ("completed", "failed"), "`outcome`")
    check_short(body["reason"], "`reason`")
    result = strict(body.get("result"), "a result")
    if bearer is not None:
        rows.check_bearer(bearer)
    call = _open_call(rows, id, outcome, result)
    if call is None:
        return {"result": "duplicate"}
    if bearer is not None and (call.policy == "ask" or call.state == "keyRefused"):
        raise Problem(409, "CONFLICT", f"only a person may settle call {_quoted(id)}")
    if bearer is None and not is_unsettled(rows, call):
        raise Problem(409, "CONFLICT", f"the current attempt may still complete call {_quoted(id)}")
    call.state, call.result = outcome, result
    return {"result": "ok"}


def _open_call(rows: Rows, id: str, outcome: str, result: Any) -> Call | None:
    """The call, which was claimed and has not ended; `None` if it ended in this way. Errors: `Problem`."""
    call = rows.calls.get(id)
    if call is not None and (call.state, call.result) == (outcome, result):
        return None
    rows.refuse_over()
    if call is None:
        raise Problem(404, "NOT_FOUND", f"there is no call {_quoted(id)}")
    if call.state == "planned":
        raise Problem(409, "CONFLICT", f"call {_quoted(id)} was never claimed")
    if call.state in ("completed", "failed"):
        raise Problem(409, "CONFLICT", f"call {_quoted(id)} has ended otherwise")
    return call


def is_unsettled(rows: Rows, call: Call) -> bool:
    """Whether nobody knows the outcome of a call: its attempt is over, or its tool refused the key."""
    is_over = call.attempt != rows.attempt or not rows.live
    return call.state == "keyRefused" or (call.state == "started" and is_over)


def unsettled(rows: Rows) -> list[Call]:
    """The calls whose outcome nobody knows."""
    return [call for call in rows.calls.values() if is_unsettled(rows, call)]


def completed_in_open_turn(rows: Rows) -> list[Call]:
    """The calls of the open turn that are over, and whose turn no rewind undid."""
    over = [call for call in rows.calls.values() if call.state in ("completed", "failed") and not call.is_undone]
    return [call for call in over if call.turn == rows.open_turn]


def refuse_unsettled(rows: Rows) -> None:
    """Errors: `Problem` while nobody knows the outcome of a call that may have changed something."""
    if any(call.state == "keyRefused" or call.policy != "readOnly" for call in unsettled(rows)):
        raise Problem(409, "UNSETTLED_CALLS", "the outcome of an earlier attempt's call is unknown")


def refuse_open(rows: Rows, excused: Iterable[str] = ()) -> None:
    """Errors: `Problem` while a call stops a boundary, or what ends the attempt."""
    refuse_unsettled(rows)
    for call in rows.calls.values():
        if call.state == "started" and call.policy in ("probe", "ask") and call.id not in excused:
            raise Problem(409, "UNSETTLED_CALLS", f"call {_quoted(call.id)} has no outcome")


def _check_call(fields: Mapping[str, Any]) -> None:
    check_word(fields["policy"], POLICIES, "`policy`")
    if fields.get("key") is not None:
        check_short(fields["key"], "a call's `key`", KEY_CHARS)
    strict(fields.get("arguments"), "the arguments")


def _new(id: str, turn: int, fields: Mapping[str, Any]) -> Call:
    return Call(id, turn, fields["policy"], fields["key"], arguments=fields.get("arguments"))


def _compare(call: Call, fields: Mapping[str, Any]) -> None:
    """What was stored first stays. A claim without a key or arguments has those of the call."""
    if fields.get("key") not in (None, call.key):
        raise invalid(f"call {_quoted(call.id)} has another key")
    if fields["policy"] != call.policy:
        raise invalid(f"call {_quoted(call.id)} has another policy: {call.policy}")
    given = fields.get("arguments")
    if given is not None and call.arguments is not None and given != call.arguments:
        raise invalid(f"call {_quoted(call.id)} has other arguments; claim it with its own arguments or without any")


def _quoted(id: str) -> str:
    return f'"{id}"'
