"""What a request must look like, whatever the run has stored: the form of names, words, numbers and payloads."""

from __future__ import annotations

import base64
import binascii
import json
import re
import unicodedata
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

PAGE = 1_000
NAME_CHARS = 128
KEY_CHARS = 256
PREFIX_KEYS = 10_000
RECORD_NAME_BYTES = 512
RECORD_VALUE_BYTES = 4 << 20
SUMMARY_BYTES = 2_048
FINISH_MESSAGE_BYTES = 1_024
WAITS = 64
MAX_USAGE = 1 << 40
USAGE = ("tokensIn", "tokensOut", "toolCalls", "costMicroUSD")
TRIGGERS = ("TURN_END", "TASK_END", "GUARD_EVAL", "POLICY_PRE", "POLICY_POST", "COMPENSATION", "SUSPENSION")
WAIT_FIELDS = {
    "approval": ["title", "proposal", "summary", "answerSchema"],
    "until": ["time"],
    "message": ["topic"],
    "rateLimit": ["provider", "resetTime"],
}
WAIT_NEEDS = {"approval": ["title", "proposal"], "until": ["time"], "message": [], "rateLimit": ["provider"]}


class Problem(Exception):
    """A refusal of the gateway: status, code and detail, and whether a fenced boundary is in the store."""

    def __init__(self, status: int, code: str, detail: str, committed: bool | None = None) -> None:
        super().__init__(code, detail)
        self.status, self.code, self.detail, self.committed = status, code, detail, committed


def invalid(detail: str) -> Problem:
    """A body or a path that does not follow the contract."""
    return Problem(400, "INVALID", detail)


def check_fields(body: Any, allowed: Iterable[str], required: Iterable[str] = ()) -> None:
    """Errors: `Problem` where this is no object, has a field that the contract does not know, or lacks one."""
    if not isinstance(body, dict):
        raise invalid(f"{body!r} is no object")
    unknown = sorted({*body} - {*allowed} - {*required})
    if unknown:
        raise invalid(f"unknown field {unknown[0]!r}")
    missing = [name for name in required if name not in body]
    if missing:
        raise invalid(f"missing field {missing[0]!r}")


def check_name(text: Any, what: str) -> str:
    """The id of a call or a wait, a topic, or the name of a channel. Errors: `Problem`."""
    if isinstance(text, str) and re.fullmatch(rf"[A-Za-z0-9._:-]{{1,{NAME_CHARS}}}", text):
        return text
    raise invalid(f"{what} must have 1 to {NAME_CHARS} characters of A-Z a-z 0-9 . _ : -")


def check_short(text: Any, what: str, most: int = NAME_CHARS) -> str:
    """A short text for people or tools, or a key. Errors: `Problem`."""
    if isinstance(text, str) and 1 <= len(text) <= most and not _has_control(text):
        return text
    raise invalid(f"{what} must have 1 to {most} characters, none of them a control character")


def check_record_name(text: Any, what: str) -> str:
    """The space, the key or the entry's id of a record. Errors: `Problem`."""
    if isinstance(text, str) and 1 <= len(text.encode()) <= RECORD_NAME_BYTES and not _has_control(text):
        return text
    raise invalid(f"{what} must have 1 to {RECORD_NAME_BYTES} bytes and no control characters")


def check_uuid(text: Any, what: str) -> str:
    """The id of a commit, a claim, a batch or a park. Errors: `Problem`."""
    try:
        uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        raise invalid(f"{what} must be a UUID") from None
    return str(text)


def check_word(word: Any, words: Iterable[str], what: str) -> str:
    """One of these words. Errors: `Problem`."""
    if word in (known := [*words]):
        return str(word)
    raise invalid(f"{what} must be one of {', '.join(known)}")


def check_list(body: Mapping[str, Any], name: str, most: int = PAGE) -> Sequence[Any]:
    """The list of this name; empty if there is none. Errors: `Problem`."""
    items = body.get(name, [])
    if not isinstance(items, list) or len(items) > most:
        raise invalid(f"`{name}` must be a list of at most {most}")
    return items


def check_names(body: Mapping[str, Any], name: str, most: int = PAGE) -> Sequence[str]:
    """A list of ids. Errors: `Problem`."""
    return [check_name(item, f"an id in `{name}`") for item in check_list(body, name, most)]


def check_different(items: Sequence[Any], what: str) -> None:
    """Errors: `Problem` where one is there twice."""
    if len({*items}) < len(items):
        raise invalid(f"{what} is there twice")


def check_number(value: Any, what: str, least: int = 0, most: int | None = None) -> int:
    """A whole number. Errors: `Problem`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least and (most is None or value <= most):
        return value
    raise invalid(f"{what} must be a whole number, at least {least}")


def check_usage(body: Mapping[str, Any]) -> dict[str, int]:
    """What a body says that was spent. Errors: `Problem`."""
    usage = body.get("usage", {})
    check_fields(usage, USAGE)
    return {name: check_number(amount, f"`usage.{name}`", most=MAX_USAGE) for name, amount in usage.items()}


def check_trigger(word: Any) -> None:
    """Errors: `Problem` where this is no trigger of the contract, and no word of an agent's own."""
    if not isinstance(word, str) or not (
        word in TRIGGERS or re.fullmatch(rf"[a-z][a-z0-9._-]{{0,{NAME_CHARS - 1}}}", word)
    ):
        raise invalid(f"`trigger` must be one of {', '.join(TRIGGERS)}, or a word of your own in small letters")


def check_finish(finish: Any) -> None:
    """Errors: `Problem`."""
    check_fields(finish, ["reason", "message", "output"], ["outcome"])
    check_word(finish["outcome"], ("succeeded", "failed"), "the outcome of a finish")
    reason, message = finish.get("reason"), finish.get("message")
    if reason is not None and not re.fullmatch("[A-Z][A-Za-z0-9]*", check_short(reason, "the finish's `reason`")):
        raise invalid("the finish's `reason` must be one CamelCase word, such as GoalReached")
    if message is not None and not (isinstance(message, str) and len(message.encode()) <= FINISH_MESSAGE_BYTES):
        raise invalid(f"the finish's `message` has at most {FINISH_MESSAGE_BYTES} bytes")
    strict(finish.get("output"), "the output")


def check_park(park: Any) -> None:
    """Errors: `Problem`."""
    check_fields(park, ["on", "mode"], ["parkId"])
    check_uuid(park["parkId"], "`parkId`")
    check_different(check_names(park, "on", WAITS), "a wait in `on`")
    check_word(park.get("mode", "all"), ("all", "any"), "`mode`")


def check_wait(body: Mapping[str, Any]) -> None:
    """Errors: `Problem`."""
    kind = check_word(body.get("kind"), WAIT_FIELDS, "`kind`")
    check_fields(body, ["deadlineSeconds", "onTimeout", *WAIT_FIELDS[kind]], ["kind", *WAIT_NEEDS[kind]])
    check_word(body.get("onTimeout", "Answer"), ("Answer", "Hold", "Fail"), "`onTimeout`")
    if body.get("deadlineSeconds") is not None:
        check_number(body["deadlineSeconds"], "`deadlineSeconds`", least=1)
    if body.get("topic") is not None:
        check_name(body["topic"], "`topic`")
    for name in {"title", "provider"} & {*body}:
        check_short(body[name], f"`{name}`")
    if "time" in body:
        parse_time(body["time"])
    if body.get("resetTime") is not None:
        parse_time(body["resetTime"])
    summary = body.get("summary")
    if summary is not None and not (isinstance(summary, str) and len(summary.encode()) <= SUMMARY_BYTES):
        raise invalid(f"`summary` has at most {SUMMARY_BYTES} bytes")
    strict(body.get("proposal"), "the proposal")


def check_payload(payload: Any) -> dict[str, Any]:
    """A payload of a request. Errors: `Problem` where it is none."""
    if not isinstance(payload, dict) or len(payload) != 1 or next(iter(payload)) not in ("json", "bytes"):
        raise invalid('a payload is {"json": …} or {"bytes": …}')
    if "bytes" in payload:
        check_fields(payload["bytes"], (), ["mediaType", "base64"])
        check_short(payload["bytes"]["mediaType"], "`mediaType`")
        try:
            base64.b64decode(payload["bytes"]["base64"], validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise invalid("`base64` is not standard base64 with padding") from None
    return payload


def strict(value: Any, what: str) -> Any:
    """The value. Errors: `Problem` where it holds NaN or an infinity, which are no JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise invalid(f"{what} has a number that is no JSON") from None
    return value


def parse_time(text: Any) -> float:
    """A time in seconds. Errors: `Problem` with `INVALID`."""
    try:
        at = datetime.fromisoformat(check_short(text, "a time").replace("Z", "+00:00"))
    except ValueError:
        raise invalid(f"{text!r} is no time of RFC 3339") from None
    if at.utcoffset() is None:
        raise invalid(f"{text!r} has no time zone")
    return at.timestamp()


def _has_control(text: str) -> bool:
    return any(unicodedata.category(character) == "Cc" for character in text)
