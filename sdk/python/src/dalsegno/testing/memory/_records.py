"""Records: entries under keys, batches, and pages in the byte order of their keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from dalsegno.testing.memory import _calls
from dalsegno.testing.memory._rows import Problem, Rows, invalid, only, payload_in, payload_out

PAGE = 1_000
PAGE_BYTES = 4 << 20
VALUE_BYTES = 4 << 20


def write(rows: Rows, body: Mapping[str, Any], raw: bytes) -> dict[str, Any]:
    """Applies a batch, once."""
    only(body, (), ["batchId", "operations"])
    digest = hashlib.sha256(raw).hexdigest()
    known = rows.batches.get(body["batchId"])
    if known == digest:
        return {"result": "duplicate"}
    if known is not None:
        raise Problem(409, "CONFLICT", "this batch was written with other bytes")
    if any(call.state == "keyRefused" or call.policy != "readOnly" for call in _calls.unsettled(rows)):
        raise Problem(409, "UNSETTLED_CALLS", "the outcome of an earlier attempt's call is unknown")
    apply(rows, body["operations"])
    rows.batches[body["batchId"]] = digest
    return {"result": "ok"}


def apply(rows: Rows, operations: Iterable[Mapping[str, Any]]) -> None:
    """Applies operations in their order. Errors: `Problem`, and then nothing is changed."""
    operations = list(operations)
    if len(operations) > PAGE:
        raise invalid(f"a batch has at most {PAGE} operations")
    changed = dict(rows.records)
    for operation in operations:
        if len(operation) != 1:
            raise invalid("an operation has one kind")
        kind, fields = next(iter(operation.items()))
        needed = {"put": ["value"], "putIfAbsent": ["value"], "append": ["value", "entryId"], "delete": []}
        if kind not in needed:
            raise invalid(f"unknown operation {kind!r}")
        only(fields, (), ["space", "key", *needed[kind]])
        place = (fields["space"], fields["key"])
        for name in (*place, fields.get("entryId", "x")):
            if not 1 <= len(name.encode()) <= 512:
                raise invalid("a space, a key and an entry id have 1 to 512 bytes")
        text = json.dumps(fields.get("value", {}).get("json"), ensure_ascii=False, separators=(",", ":"))
        if len(text.encode("utf-8", "surrogatepass")) > VALUE_BYTES:
            raise Problem(413, "TOO_LARGE", f"a value of {len(text)} characters")
        _apply_one(rows, changed, place, kind, fields)
    rows.records = changed


def _apply_one(
    rows: Rows, records: dict[Any, Any], place: tuple[str, str], kind: str, fields: Mapping[str, Any]
) -> None:
    entries = records.get(place, [])
    if kind == "delete":
        records.pop(place, None)
        return
    entry = {"key": place[1], "value": payload_in(fields["value"]), "turn": rows.open_turn}
    if kind == "append":
        if all(old.get("entryId") != fields["entryId"] for old in entries):
            records[place] = [*entries, {"key": place[1], "entryId": fields["entryId"], **entry}]
    elif kind == "put" or not entries:
        records[place] = [entry]


def read(rows: Rows, space: str, prefix: str, after: str, limit: int) -> dict[str, Any]:
    """A page of entries, and where the next one begins."""
    if limit < 1:
        raise invalid("a limit is at least 1")
    found = [
        entry
        for (in_space, key), entries in sorted(rows.records.items(), key=lambda item: item[0][1].encode())
        if in_space == space and key.startswith(prefix)
        for entry in entries
    ]
    first = int(after) if after.isdecimal() else 0
    page: list[dict[str, Any]] = []
    size = 0
    for entry in found[first:]:
        if len(page) == min(limit, PAGE) or size > PAGE_BYTES:
            break
        size += len(str(entry["value"]))
        page.append({**entry, "value": payload_out(entry["value"])})
    more = first + len(page) < len(found)
    return {"records": page, **({"next": str(first + len(page))} if more else {})}


def rewind(rows: Rows, turn: int) -> None:
    """Hides what was written in the turns after this one. What an undone write replaced is not given back."""
    kept = {place: [it for it in entries if it["turn"] <= turn] for place, entries in rows.records.items()}
    rows.records = {place: entries for place, entries in kept.items() if entries}
