"""A space of a run's records: keys with entries, and blobs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any, cast

from dalsegno import _records
from dalsegno._records import BATCH_OPERATIONS, Item, Operation
from dalsegno._transport import Transport

CHUNK_BYTES = (3 << 20) - 3
"""Bytes of a blob in one record: its base64, with both quotes, is below the 4 MiB that a record's value may have."""

BATCH_CHUNKS = 3
"""Chunks in one batch, so that its body stays below the 16 MiB of a request."""

POINTER = "dalsegno.blob"


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
        chunks = {item.key for item in self.items(_chunk_prefix(key))}
        self._write(Operation.delete(self.name, key))
        for chunk in sorted(chunks):
            self._write(Operation.delete(self.name, chunk))

    def items(self, prefix: str = "", reverse: bool = False) -> Iterator[Item]:
        """Yields the entries under keys that begin with `prefix`: by key, in byte order, then as they were added.

        reverse: from the last one to the first. Today's contract reads all of them for that.
        """
        read = _records.read_reversed if reverse else _records.read
        return read(self._transport, self.name, prefix)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of the key's first entry; `default` if it has none."""
        for item in _records.read(self._transport, self.name, key, limit=1):
            return item.value if item.key == key else default  # the key itself sorts before what begins with it
        return default

    def blob_put(self, key: str, content: bytes) -> None:
        """Stores bytes of any length under the key.

        They are cut into chunks of 3 MiB under keys that begin with the key and a slash, and the pointer is written last: a
        reader sees the old bytes or the new ones. Writing the same bytes again costs a read.
        """
        digest = hashlib.sha256(content).hexdigest()
        old = self._pointer(key)
        count = -(-len(content) // CHUNK_BYTES)
        if old is not None and old["sha256"] == digest:
            return
        prefix = f"{_chunk_prefix(key)}{digest[:16]}."
        for first in range(0, count, BATCH_CHUNKS):
            numbers = range(first, min(first + BATCH_CHUNKS, count))
            _records.write(self._transport, [self._chunk(prefix, number, content) for number in numbers])
        self.put(key, {POINTER: {"sha256": digest, "chunks": count, "prefix": prefix}})
        if old is not None:
            stale = [Operation.delete(self.name, f"{old['prefix']}{number:06}") for number in range(old["chunks"])]
            for at in range(0, len(stale), BATCH_OPERATIONS):
                _records.write(self._transport, stale[at : at + BATCH_OPERATIONS])

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
        return Operation.put(self.name, f"{prefix}{number:06}", base64.b64encode(part).decode())

    def _write(self, operation: Operation) -> None:
        _records.write(self._transport, [operation])


def _chunk_prefix(key: str) -> str:
    return f"{key}/.chunk."
