"""Records: entries under keys, batches, and pages in the byte order of their keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from dalsegno.testing.memory import _calls
from dalsegno.testing.memory._checks import (
    PAGE,
    RECORD_VALUE_BYTES,
    Problem,
    check_fields,
    check_list,
    check_payload,
    check_record_name,
    check_uuid,
    check_word,
    invalid,
)
from dalsegno.testing.memory._rows import Rows, payload_out

PAGE_BYTES = 4 << 20
NEEDS = {
    "put": ["key", "value"],
    "putIfAbsent": ["key", "value"],
    "append": ["key", "value", "entryId"],
    "delete": ["key"],
    "deletePrefix": ["prefix"],
}
Entry = dict[str, Any]


def write(rows: Rows, body: Mapping[str, Any], raw: bytes, bearer: str) -> dict[str, Any]:
    """Applies a batch, once."""
    check_fields(body, (), ["batchId", "operations"])
    check_uuid(body["batchId"], "`batchId`")
    operations = check_list(body, "operations")
    if not operations:
        raise invalid("`operations` is empty: there is nothing to write")
    check_operations(operations)
    digest = hashlib.sha256(raw).hexdigest()
    rows.check_bearer(bearer)
    known = rows.batches.get(body["batchId"])
    if known == digest:
        return {"result": "duplicate"}
    rows.refuse_over()
    _calls.refuse_unsettled(rows)
    if known is not None:
        raise Problem(409, "CONFLICT", "this batch was written with other bytes")
    apply(rows, operations)
    rows.batches = {**rows.batches, body["batchId"]: digest}
    return {"result": "ok"}


def check_operations(operations: Iterable[Any]) -> None:
    """Errors: `Problem`."""
    for operation in operations:
        if not isinstance(operation, dict) or len(operation) != 1:
            raise invalid("an operation has one kind")
        [(kind, fields)] = operation.items()
        check_word(kind, NEEDS, "an operation")
        check_fields(fields, (), ["space", *NEEDS[kind]])
        for name in {"space", "key", "entryId", "prefix"} & {*fields}:
            check_record_name(fields[name], f"a record's `{name}`")
        if "value" in fields:
            _check_size(check_payload(fields["value"]))


def _check_size(value: Mapping[str, Any]) -> None:
    if "bytes" in value:
        size = len(value["bytes"]["base64"])
    else:
        text = json.dumps(value["json"], ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode("utf-8", "surrogatepass"))
    if size > RECORD_VALUE_BYTES:
        raise Problem(413, "TOO_LARGE", f"a value of {size} bytes")


def apply(rows: Rows, operations: Iterable[Mapping[str, Any]]) -> None:
    """Applies operations, which were checked, in their order."""
    changed = dict(rows.records)
    for operation in operations:
        [(kind, fields)] = operation.items()
        space = fields["space"]
        if kind == "deletePrefix":
            doomed = [place for place in changed if place[0] == space and place[1].startswith(fields["prefix"])]
            for place in doomed:
                del changed[place]
            continue
        place = (space, fields["key"])
        entries = changed.get(place, [])
        if kind == "delete":
            changed.pop(place, None)
            continue
        rows.entries += 1
        entry = {"key": place[1], "value": fields["value"], "turn": rows.open_turn, "number": rows.entries}
        if kind == "append":
            if all(old.get("entryId") != fields["entryId"] for old in entries):
                changed[place] = [*entries, {"entryId": fields["entryId"], **entry}]
        elif kind == "put" or not entries:
            changed[place] = [entry]
    rows.records = changed


def read(rows: Rows, query: Mapping[str, str], limit: int) -> dict[str, Any]:
    """A page of entries, or of keys, and where the next one begins."""
    if "space" not in query:
        raise invalid("this call needs the parameter `space`")
    down = check_word(query.get("order", "asc"), ("asc", "desc"), "`order`") == "desc"
    keys_only = check_word(query.get("keysOnly", "false"), ("true", "false"), "`keysOnly`") == "true"
    after = _cursor(query["after"]) if "after" in query else None
    entries = [
        entry
        for (space, key), entries in rows.records.items()
        if space == query["space"] and key.startswith(query.get("prefix", ""))
        for entry in entries
        if after is None or (_place(entry) < after if down else _place(entry) > after)
    ]
    entries.sort(key=_place, reverse=down)
    groups = [[entry] for entry in entries]
    if keys_only:
        groups = [[*of_key] for _, of_key in groupby(entries, lambda it: it["key"])]
    page: list[list[Entry]] = []
    size = 0
    for group in groups[: min(limit, PAGE)]:
        if size > PAGE_BYTES:
            break
        size += 0 if keys_only else _size(group)
        page.append(group)
    last = page[-1][-1] if len(page) < len(groups) else None
    return {
        "records": [{"key": group[0]["key"]} if keys_only else _public(group[0]) for group in page],
        **({"next": f"{last['number']}.{last['key']}"} if last else {}),
    }


def check_keys(body: Mapping[str, Any]) -> None:
    """Errors: `Problem` where this does not name keys of a space."""
    check_fields(body, (), ["space", "keys"])
    for name in (body["space"], *check_list(body, "keys")):
        check_record_name(name, "a record's `space` or key")


def read_keys(rows: Rows, space: str, keys: Iterable[str]) -> dict[str, Any]:
    """The entries of these keys, in the order of the keys. `more`: whether keys at the end were left out."""
    found: list[Entry] = []
    size = 0
    for key in keys:
        if size > PAGE_BYTES:
            return {"records": found, "more": True}
        entries = rows.records.get((space, key), [])
        size += _size(entries)
        found += map(_public, entries)
    return {"records": found, "more": False}


def _place(entry: Entry) -> tuple[bytes, int]:
    return entry["key"].encode(), entry["number"]


def _cursor(text: str) -> tuple[bytes, int]:
    number, point, key = text.partition(".")
    if not point or not number.isdecimal():
        raise invalid("`after` is not a `next` of this call")
    return key.encode(), int(number)


def _size(entries: Iterable[Entry]) -> int:
    return sum(len(str(entry["value"])) for entry in entries)


def _public(entry: Entry) -> Entry:
    shown = {name: value for name, value in entry.items() if name != "number"}
    return {**shown, "value": payload_out(entry["value"])}
