"""Records: entries under keys, batches, and pages in the byte order of their keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from dalsegno.testing.memory import _calls
from dalsegno.testing.memory._checks import (
    PAGE,
    PREFIX_KEYS,
    RECORD_VALUE_BYTES,
    Problem,
    check_different,
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
    check_prefixes(rows, operations)
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


def check_prefixes(rows: Rows, operations: Iterable[Mapping[str, Any]]) -> None:
    """Errors: `Problem` where operations, which were checked, would empty too many keys by their prefixes."""
    prefixes = [(it["deletePrefix"]["space"], it["deletePrefix"]["prefix"]) for it in operations if "deletePrefix" in it]
    places = (any(space == of and key.startswith(prefix) for of, prefix in prefixes) for space, key in rows.records)
    if sum(places) > PREFIX_KEYS:
        detail = (
            f"the operations deletePrefix would empty more than {PREFIX_KEYS} keys, so nothing was written: delete the "
            "keys before, in batches of their own, each with a longer prefix or with an operation delete for each key"
        )
        raise Problem(413, "TOO_LARGE", detail)


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
    page, more = _page(groups, limit, 0 if keys_only else PAGE_BYTES)
    return _answer(({"key": group[0]["key"]} if keys_only else _public(group[0]) for group in page), more and page[-1][-1])


def read_keys(rows: Rows, body: Mapping[str, Any], bearer: str) -> dict[str, Any]:
    """A page of the entries of these keys, in the order of the keys, and where the next one begins."""
    check_fields(body, ["after"], ["space", "keys"])
    keys = check_list(body, "keys")
    for name in (body["space"], *keys):
        check_record_name(name, "a record's `space` or key")
    check_different(keys, "a key")
    if not keys:
        raise invalid("`keys` is empty: there is nothing to read")
    after = body.get("after")
    last, number = _cursor(after) if after is not None else (keys[0].encode(), 0)
    if last.decode() not in keys:
        raise invalid("`after` is not a `next` of these keys")
    rows.check_bearer(bearer)
    left = keys[keys.index(last.decode()) :]
    entries = [entry for key in left for entry in rows.records.get((body["space"], key), [])]
    entries = [entry for entry in entries if entry["key"] != left[0] or entry["number"] > number]
    page, more = _page([[entry] for entry in entries], PAGE, PAGE_BYTES)
    return _answer((_public(entry) for [entry] in page), more and page[-1][0])


def _page(groups: Sequence[list[Entry]], limit: int, most_bytes: int) -> tuple[list[list[Entry]], bool]:
    """As many of them as a page holds, and whether there are more. most_bytes: 0 if the page has keys alone."""
    page: list[list[Entry]] = []
    size = 0
    for group in groups[: min(limit, PAGE)]:
        if size > most_bytes:
            break
        size += sum(len(str(entry["value"])) for entry in group) if most_bytes else 0
        page.append(group)
    return page, len(page) < len(groups)


def _answer(records: Iterable[Entry], last: Entry | Literal[False]) -> dict[str, Any]:
    """A page. last: its last entry, if it is not the last page."""
    return {"records": [*records], **({"next": f"{last['number']}.{last['key']}"} if last else {})}


def _place(entry: Entry) -> tuple[bytes, int]:
    return entry["key"].encode(), entry["number"]


def _cursor(text: str) -> tuple[bytes, int]:
    number, point, key = text.partition(".")
    if not point or not number.isdecimal():
        raise invalid("`after` is not a `next` of this call")
    return key.encode(), int(number)


def _public(entry: Entry) -> Entry:
    shown = {name: value for name, value in entry.items() if name != "number"}
    return {**shown, "value": payload_out(entry["value"])}
