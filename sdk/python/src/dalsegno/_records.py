"""Records: entries under keys, beside the state."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from dalsegno import _wire
from dalsegno._json import decode_payload, encode_payload
from dalsegno._transport import Transport

BATCH_OPERATIONS = 1_000

ENTRIES_OF_A_KEY = 10
"""How many entries an older gateway is asked for at once, where only those of one key are wanted."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of a run's records. Make one with `put`, `put_if_absent`, `append`, `delete` or `delete_prefix`.

    A value is JSON of at most 4 MiB; a dataclass or a pydantic model becomes an object. A space, a key and an entry id
    have at most 512 bytes and no control characters.
    """

    kind: str
    """As the contract names it: `put`, `putIfAbsent`, `append`, `delete` or `deletePrefix`."""
    fields: Mapping[str, Any]
    """`space`, `key` or `prefix`, and, by kind, `value` and `entryId`."""

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

    @staticmethod
    def delete_prefix(space: str, prefix: str) -> Operation:
        """Removes all entries of the keys that begin with `prefix`, as they are at this place in the batch.

        A batch with it waits until every gateway has it, as the calls for waits do; `Space.delete_prefix` does not.
        Errors: `ValueError` where the prefix is empty. `Refused` with `TOO_LARGE`, where the batch or the turn is sent, if
        its prefixes have more than 10,000 keys together: call `Space.delete_prefix` before it.
        """
        if not prefix:
            raise ValueError("delete_prefix: the prefix is empty")
        return Operation("deletePrefix", {"space": space, "prefix": prefix})


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
    encoded = encode(operations)
    transport.send("records", {"batchId": str(uuid.uuid4()), "operations": encoded}, needs=needed(encoded))


def needed(encoded: Iterable[Mapping[str, Any]]) -> int:
    """The version of the contract that has these operations."""
    return _wire.ADDITIONS if any("deletePrefix" in it for it in encoded) else 1


def read(
    transport: Transport, space: str, prefix: str = "", limit: int | None = None, reverse: bool = False
) -> Iterator[Item]:
    """Yields the entries under keys with this prefix. A page is requested when the caller gets there.

    Backwards, an older gateway gives no pages: then all of them are read first.
    """
    if reverse and not transport.has_additions:
        yield from reversed(list(read(transport, space, prefix, limit)))
        return
    yield from map(_item, _records_of(transport, space, prefix, limit, "&order=desc" if reverse else ""))


def read_keys(transport: Transport, space: str, prefix: str = "", reverse: bool = False) -> Iterator[str]:
    """Yields the keys with this prefix. An older gateway sends their values too."""
    if transport.has_additions:
        order = "&order=desc" if reverse else ""
        for record in _records_of(transport, space, prefix, None, f"&keysOnly=true{order}"):
            yield record["key"]
        return
    for key, _ in itertools.groupby(read(transport, space, prefix, reverse=reverse), lambda item: item.key):
        yield key


def read_many(transport: Transport, space: str, keys: Iterable[str]) -> Iterator[Item]:
    """Yields the entries of these keys, in the order of the keys. An older gateway is asked for each key."""
    asked = list(dict.fromkeys(keys))
    if not transport.has_additions:
        for key in asked:
            # The key itself sorts before what begins with it.
            yield from itertools.takewhile(lambda item: item.key == key, read(transport, space, key, ENTRIES_OF_A_KEY))
        return
    for at in range(0, len(asked), BATCH_OPERATIONS):
        fields: dict[str, Any] = {"space": space, "keys": asked[at : at + BATCH_OPERATIONS]}
        while True:
            page = transport.send("records/read", fields)
            yield from map(_item, page["records"])
            if "next" not in page:
                break
            fields["after"] = page["next"]


def _records_of(
    transport: Transport, space: str, prefix: str, limit: int | None, more: str
) -> Iterator[dict[str, Any]]:
    query = f"records?space={quote(space)}&prefix={quote(prefix)}" + (f"&limit={limit}" if limit else "") + more
    after = ""
    while True:
        page = transport.send(query + (f"&after={quote(after)}" if after else ""), method="GET")
        yield from page["records"]
        if "next" not in page:
            return
        after = page["next"]


def encode(operations: Iterable[Operation]) -> list[dict[str, dict[str, Any]]]:
    """Operations as the contract has them, with each value as a payload."""
    return [
        {it.kind: {**it.fields, "value": encode_payload(it.fields["value"])} if "value" in it.fields else {**it.fields}}
        for it in operations
    ]


def _item(record: Mapping[str, Any]) -> Item:
    return Item(record["key"], decode_payload(record["value"]), record["turn"], record.get("entryId"))
