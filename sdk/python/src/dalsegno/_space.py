"""A space of a run's records: keys with entries, and blobs."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, cast

from dalsegno import _records
from dalsegno._errors import Refused
from dalsegno._records import BATCH_OPERATIONS, Item, Operation
from dalsegno._transport import Transport

CHUNK_BYTES = (3 << 20) - 3
"""Bytes of a blob in one record: its base64, with both quotes, is below the 4 MiB that a record's value may have."""

BATCH_CHUNKS = 3
"""Chunks in one batch, so that its body stays below the 16 MiB of a request."""

POINTER = "dalsegno.blob"

BLOB_KEY_BYTES = 481
"""The longest key of a blob: a record's key has 512 bytes, and a chunk's is 31 bytes longer."""


class Space:
    """The records of one space, `run.space(name)`. Each write is durable on return.

    To write several operations together or not at all, give them to `run.write`; to write them with a turn, give them
    to `turn.record`.

    Errors of each write: `Refused` with `UNSETTLED_CALLS` while a call of an earlier attempt has no outcome, see
    `run.recover`; with `TOO_LARGE` for a value above 4 MiB.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self.name = name
        """The space's name."""

    def put(self, key: str, value: Any) -> None:
        """Makes the value the key's only entry. The value is JSON of at most 4 MiB."""
        self._write(Operation.put(self.name, key, value))

    def put_if_absent(self, key: str, value: Any) -> None:
        """Makes the value the key's only entry, if the key has none."""
        self._write(Operation.put_if_absent(self.name, key, value))

    def append(self, key: str, entry_id: str, value: Any) -> None:
        """Adds an entry at the end of the key, unless the key has one with this id."""
        self._write(Operation.append(self.name, key, entry_id, value))

    def delete(self, key: str) -> None:
        """Removes all entries of the key, and the chunks of a blob."""
        chunks = self._deletes(_chunk_prefix(key)) if len(key.encode()) <= BLOB_KEY_BYTES else []
        self._write(Operation.delete(self.name, key), *chunks)

    def delete_prefix(self, prefix: str) -> None:
        """Removes all entries of the keys that begin with `prefix`, in one request.

        Where more than 10,000 keys hold something, and on an older gateway, it reads the keys and removes them in batches
        of 1,000, so a crash may leave some of them. Errors: `ValueError` where the prefix is empty.
        """
        try:
            self._write(*self._deletes(prefix))
        except Refused as refused:
            if refused.code != "TOO_LARGE":
                raise
            keys = self.keys(prefix)
            while page := [*itertools.islice(keys, BATCH_OPERATIONS)]:
                self._write(*(Operation.delete(self.name, key) for key in page))

    def items(self, prefix: str = "", reverse: bool = False) -> Iterator[Item]:
        """Yields the entries under keys that begin with `prefix`: by key, in byte order, then as they were added.

        reverse: from the last one to the first. An older gateway has to be asked for all of them before that.
        """
        return _records.read(self._transport, self.name, prefix, reverse=reverse)

    def keys(self, prefix: str = "", reverse: bool = False) -> Iterator[str]:
        """Yields the keys that begin with `prefix` and hold an entry, in byte order or in its `reverse`, without their
        values."""
        return _records.read_keys(self._transport, self.name, prefix, reverse)

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """The values of the first entries of many keys, by key; a key without an entry is left out.

        A thousand keys are one request, or more if the values are large. An older gateway is asked once for each key.
        """
        found: dict[str, Any] = {}
        for item in _records.read_many(self._transport, self.name, keys):
            found.setdefault(item.key, item.value)
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """The value of the key's first entry; `default` if it has none."""
        for item in _records.read(self._transport, self.name, key, limit=1):
            return item.value if item.key == key else default  # the key itself sorts before what begins with it
        return default

    def blob_put(self, key: str, content: bytes) -> None:
        """Stores bytes of any length under the key.

        They are cut into chunks of 3 MiB under keys that begin with the key and a slash, and the pointer is written
        last: a reader sees the old bytes or the new ones. Writing the same bytes again costs a read. The keys of the
        chunks are 31 bytes longer than the key, so the key has at most 481 bytes.

        Errors: `ValueError` for a longer key.
        """
        if len(key.encode()) > BLOB_KEY_BYTES:
            raise ValueError(f"blob_put: the key of a blob has at most {BLOB_KEY_BYTES} bytes")
        digest = hashlib.sha256(content).hexdigest()
        old = self._pointer(key)
        count = -(-len(content) // CHUNK_BYTES)
        if old is not None and old["sha256"] == digest:
            return
        prefix = f"{_chunk_prefix(key)}{digest[:16]}."
        for first in range(0, count, BATCH_CHUNKS):
            numbers = range(first, min(first + BATCH_CHUNKS, count))
            _records.write(self._transport, [self._chunk(prefix, number, content) for number in numbers])
        pointer = Operation.put(self.name, key, {POINTER: {"sha256": digest, "chunks": count, "prefix": prefix}})
        self._write(pointer, *(self._deletes_of(old) if old is not None else ()))

    def blob_get(self, key: str) -> bytes | None:
        """The bytes under the key; `None` if the key has no blob.

        Errors: `ValueError` where the chunks are not what was stored.
        """
        pointer = self._pointer(key)
        if pointer is None:
            return None
        chunks = [base64.b64decode(item.value) for item in self.items(pointer["prefix"])]
        content = b"".join(chunks)
        if hashlib.sha256(content).hexdigest() != pointer["sha256"]:
            raise ValueError("the chunks of the blob are not what was stored")
        return content

    def _pointer(self, key: str) -> dict[str, Any] | None:
        value = self.get(key)
        return cast("dict[str, Any]", value[POINTER]) if isinstance(value, dict) and POINTER in value else None

    def _chunk(self, prefix: str, number: int, content: bytes) -> Operation:
        part = content[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
        return Operation.put(self.name, _chunk_key(prefix, number), base64.b64encode(part).decode())

    def _deletes(self, prefix: str) -> list[Operation]:
        """What removes the keys with this prefix: one operation, or on an older gateway one for each key."""
        whole = Operation.delete_prefix(self.name, prefix)  # which refuses the empty prefix, whatever the gateway
        if self._transport.has_additions:
            return [whole]
        return [Operation.delete(self.name, key) for key in self.keys(prefix)]

    def _deletes_of(self, pointer: dict[str, Any]) -> list[Operation]:
        """What removes the chunks of a blob. Its pointer says which they are, so none of them is read."""
        if self._transport.has_additions:
            return [Operation.delete_prefix(self.name, pointer["prefix"])]
        keys = (_chunk_key(pointer["prefix"], number) for number in range(pointer["chunks"]))
        return [Operation.delete(self.name, key) for key in keys]

    def _write(self, *operations: Operation) -> None:
        for at in range(0, len(operations), BATCH_OPERATIONS):
            _records.write(self._transport, operations[at : at + BATCH_OPERATIONS])


def _chunk_prefix(key: str) -> str:
    return f"{key}/.chunk."


def _chunk_key(prefix: str, number: int) -> str:
    return f"{prefix}{number:06}"
