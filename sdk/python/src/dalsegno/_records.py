"""Records: entries under keys, beside the state."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from dalsegno._json import decode_payload, encode_payload
from dalsegno._transport import Transport

BATCH_OPERATIONS = 1_000


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of a run's records. Make one with `put`, `put_if_absent`, `append` or `delete`.

    A value is JSON of at most 4 MiB; a dataclass or a pydantic model becomes an object. A space, a key and an entry id
    have at most 512 bytes and no control characters.
    """

    kind: str
    """As the contract names it: `put`, `putIfAbsent`, `append` or `delete`."""
    fields: Mapping[str, Any]
    """`space`, `key` and, by kind, `value` and `entryId`."""

    @staticmethod
    def put(space: str, key: str, value: Any) -> Operation:
        """The value becomes the key's only entry."""
        return Operation("put", {"space": space, "key": key, "value": value})

    @staticmethod
    def put_if_absent(space: str, key: str, value: Any) -> Operation:
        """The value becomes the key's only entry, if the key has none."""
        return Operation("putIfAbsent", {"space": space, "key": key, "value": value})

    @staticmethod
    def append(space: str, key: str, entry_id: str, value: Any) -> Operation:
        """Adds an entry at the end of the key, unless the key has one with this id."""
        return Operation("append", {"space": space, "key": key, "entryId": entry_id, "value": value})

    @staticmethod
    def delete(space: str, key: str) -> Operation:
        """Removes all entries of the key."""
        return Operation("delete", {"space": space, "key": key})


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a run's records."""

    key: str
    value: Any
    turn: int
    """The turn that was open when it was written."""
    entry_id: str | None = None
    """The id of an appended entry; `None` for one that was put."""


def write(transport: Transport, operations: Iterable[Operation]) -> None:
    """Sends one batch: all of its operations or none. Its id makes a repeated batch a duplicate."""
    transport.send("records", {"batchId": str(uuid.uuid4()), "operations": encode(operations)})


def read(transport: Transport, space: str, prefix: str = "", limit: int | None = None) -> Iterator[Item]:
    """Yields the entries under keys with this prefix. A page is requested when the caller gets there."""
    query = f"records?space={quote(space)}&prefix={quote(prefix)}" + (f"&limit={limit}" if limit else "")
    after = ""
    while True:
        page = transport.send(query + (f"&after={quote(after)}" if after else ""), method="GET")
        yield from map(_item, page["records"])
        if "next" not in page:
            return
        after = page["next"]


def read_reversed(transport: Transport, space: str, prefix: str = "") -> Iterator[Item]:
    """Yields the same entries from the last one to the first.

    The contract has no order but one: so all of them are read first. With `order=desc` in the contract this function
    is a query like `read`.
    """
    yield from reversed(list(read(transport, space, prefix)))


def encode(operations: Iterable[Operation]) -> list[dict[str, dict[str, Any]]]:
    """Operations as the contract has them, with each value as a payload."""
    return [
        {it.kind: {**it.fields, "value": encode_payload(it.fields["value"])} if "value" in it.fields else {**it.fields}}
        for it in operations
    ]


def _item(record: Mapping[str, Any]) -> Item:
    return Item(record["key"], decode_payload(record["value"]), record["turn"], record.get("entryId"))
