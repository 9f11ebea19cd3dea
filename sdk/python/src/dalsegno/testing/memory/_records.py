"""Records: entries under keys, batches, and pages in the byte order of their keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
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
NEEDS = {"put": ["value"], "putIfAbsent": ["value"], "append": ["value", "entryId"], "delete": []}


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
        check_fields(fields, (), ["space", "key", *NEEDS[kind]])
        for name in {"space", "key", "entryId"} & {*fields}:
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
        place = (fields["space"], fields["key"])
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
    """A page of entries, and where the next one begins."""
    if "space" not in query:
        raise invalid("this call needs the parameter `space`")
    prefix = query.get("prefix", "")
    found = [
        (key.encode(), entry["number"], entry)
        for (space, key), entries in rows.records.items()
        if space == query["space"] and key.startswith(prefix)
        for entry in entries
    ]
    after = _cursor(query["after"]) if "after" in query else (b"", 0)
    left = sorted((it for it in found if it[:2] > after), key=lambda it: it[:2])
    page: list[dict[str, Any]] = []
    size = 0
    for _, _, entry in left[: min(limit, PAGE)]:
        if size > PAGE_BYTES:
            break
        size += len(str(entry["value"]))
        page.append(entry)
    more = len(page) < len(left)
    return {
        "records": [_public(entry) for entry in page],
        **({"next": f"{page[-1]['number']}.{page[-1]['key']}"} if more else {}),
    }


def _cursor(text: str) -> tuple[bytes, int]:
    number, point, key = text.partition(".")
    if not point or not number.isdecimal():
        raise invalid("`after` is not a `next` of this call")
    return key.encode(), int(number)


def _public(entry: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in entry.items() if name != "number"}
    return {**shown, "value": payload_out(entry["value"])}
