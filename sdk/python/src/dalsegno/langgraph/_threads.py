"""What is known of a run's checkpoints: an index in memory over the run's records.

Four spaces hold it. A part of a key is quoted, and a long one is replaced by its digest:

- `lg.checkpoints`: `THREAD/NAMESPACE/CHECKPOINT/` has a checkpoint without the values of its channels, and the versions of
  those channels that have a value.
- `lg.values`: `THREAD/NAMESPACE/CHANNEL/VERSION/` has the value of a version of a channel.
- `lg.writes`: `THREAD/NAMESPACE/CHECKPOINT/TASK/NUMBER/` has the pending writes of one `put_writes`.
- `lg.blobs`: a digest of a record's space and key has its JSON if that is above 3 MiB; the record says `{"blob": …}`.

The thread of the run itself is `@`, so that a fork of the run, which has another id, finds it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import urllib.parse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dalsegno._records import BATCH_OPERATIONS, Operation
from dalsegno._run import Run
from dalsegno._shapes import is_object

CHECKPOINTS, VALUES, WRITES, BLOBS = "lg.checkpoints", "lg.values", "lg.writes", "lg.blobs"

OWN_THREAD = "@"  # a quoted part never has this character

MAX_PART_CHARACTERS = 108
"""Five parts, their slashes and the suffix of a chunk stay below the 512 bytes of a record's key."""

MAX_INLINE_BYTES = 3 << 20
"""A record whose JSON is longer is stored as a blob. A value may have 4 MiB."""

BATCH_BYTES = 8 << 20
"""What is longer than this together is written in several batches. A body may have 16 MiB."""

Typed = tuple[str, bytes]
"""What a serializer makes of a value: its type and its bytes."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint without the values of its channels."""

    thread: str | None
    """The thread's id; `None` for the thread of the run itself."""
    ns: str
    id: str
    parent: str | None
    checkpoint: Typed
    metadata: Typed
    values: dict[str, Any]
    """The version of each channel that has a value. A channel without one is not in it."""


@dataclass(frozen=True, slots=True)
class StoredWrite:
    """A pending write of a task."""

    task: str
    index: int
    """Its place among the task's writes; below 0 for a special write, which a later one replaces."""
    channel: str
    path: str
    value: Typed


@dataclass(slots=True)
class Thread:
    """A thread in memory. Parts of keys are its keys."""

    checkpoints: dict[str, dict[str, StoredCheckpoint]] = field(default_factory=lambda: defaultdict(dict))
    """By namespace and checkpoint."""
    writes: dict[tuple[str, str], dict[tuple[str, int], StoredWrite]] = field(default_factory=lambda: defaultdict(dict))
    """By namespace and checkpoint, then by task and index."""
    write_keys: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    """The keys of the records of those writes."""
    filled: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    """By namespace: the channels and versions that have a stored value."""

    def add(self, stored: StoredCheckpoint) -> None:
        """Adds a checkpoint."""
        ns = quoted(stored.ns)
        self.checkpoints[ns][quoted(stored.id)] = stored
        self.filled[ns].update((channel, str(version)) for channel, version in stored.values.items())

    def drop(self, doomed: Sequence[StoredCheckpoint]) -> list[tuple[StoredCheckpoint, str]]:
        """Removes checkpoints and their writes. Returns those of their channels whose value no other checkpoint has."""
        for stored in doomed:
            at = quoted(stored.ns), quoted(stored.id)
            self.writes.pop(at, None)
            self.write_keys.pop(at, None)
            del self.checkpoints[at[0]][at[1]]
        for ns in {quoted(stored.ns) for stored in doomed}:
            others = self.checkpoints[ns].values()
            self.filled[ns] = {(name, str(version)) for it in others for name, version in it.values.items()}
        return [
            (stored, name)
            for stored in doomed
            for name, version in stored.values.items()
            if (name, str(version)) not in self.filled[quoted(stored.ns)]
        ]

    def merge(self, at: tuple[str, str], writes: Iterable[StoredWrite]) -> None:
        """Adds writes. A task that runs again keeps what it wrote first, apart from special writes."""
        known = self.writes[at]
        for write in writes:
            if write.index < 0 or (write.task, write.index) not in known:
                known[write.task, write.index] = write


class Threads:
    """The checkpoints of a run, read once for each thread, and changed together with the records.

    Invariant: the index holds what the store has accepted. Every method sends requests or touches the index, so all of
    them run in one thread: see `Io`. A thread is known by its part of the keys, see `part`.
    """

    def __init__(self, run: Run[Any]) -> None:
        self._run = run
        self._loaded: dict[str, Thread] = {}
        self._all_loaded = False
        self._latest: dict[str, tuple[str, Typed]] = {}  # by a channel's prefix: the newest value, with its key

    def thread(self, part: str) -> Thread:
        """The thread, which is read when it is first asked for."""
        if part not in self._loaded and not self._all_loaded:
            self._loaded[part] = self._read(f"{part}/").get(part, Thread())
        return self._loaded.setdefault(part, Thread())

    def all(self) -> dict[str, Thread]:
        """All threads by their part of the keys."""
        if not self._all_loaded:
            self._loaded = {**self._read(""), **self._loaded}
            self._all_loaded = True
        return self._loaded

    def value(self, part: str, stored: StoredCheckpoint, channel: str) -> Typed:
        """The value of a channel in a checkpoint. Of each channel the newest value is kept in memory."""
        prefix = path(part, quoted(stored.ns), quoted(channel))
        key = f"{prefix}{quoted(stored.values[channel])}/"
        if (kept := self._latest.get(prefix)) is not None and kept[0] == key:
            return kept[1]
        value = typed(self._get(VALUES, key))
        if kept is None:
            self._latest[prefix] = (key, value)
        return value

    def put(self, part: str, stored: StoredCheckpoint, values: dict[str, Typed]) -> list[Operation]:
        """The operations that store a checkpoint and these new values. What does not fit into one batch is written now.

        A value that is written before its checkpoint is found by nobody. Call `note` when the operations are accepted.
        """
        operations = [
            self._put(VALUES, self._value_key(part, stored, channel), untyped(value))
            for channel, value in values.items()
        ]
        record = {
            "thread": stored.thread,
            "ns": stored.ns,
            "id": stored.id,
            "parent": stored.parent,
            "checkpoint": untyped(stored.checkpoint),
            "metadata": untyped(stored.metadata),
            "values": stored.values,
        }
        last = self._put(CHECKPOINTS, path(part, quoted(stored.ns), quoted(stored.id)), record)
        *early, late = batches([*operations, last])
        for batch in early:
            self._run.write(*batch)
        return late

    def note(self, part: str, stored: StoredCheckpoint, values: dict[str, Typed]) -> None:
        """The store has accepted a checkpoint."""
        self.thread(part).add(stored)
        for channel, value in values.items():
            key = self._value_key(part, stored, channel)
            self._latest[path(part, quoted(stored.ns), quoted(channel))] = (key, value)

    def put_writes(self, part: str, ns: str, id: str, task: str, writes: Sequence[StoredWrite]) -> None:
        """Stores pending writes: all of them or none."""
        thread, at = self.thread(part), (quoted(ns), quoted(id))
        prefix = path(part, *at, quoted(task))
        number = sum(key.startswith(prefix) for key in thread.write_keys[at])
        key = f"{prefix}{number:06}/"
        record = {"task": task, "writes": [[it.index, it.channel, it.path, *untyped(it.value)] for it in writes]}
        self._run.write(self._put(WRITES, key, record))
        thread.write_keys[at].append(key)
        thread.merge(at, writes)

    def delete_thread(self, part: str) -> None:
        """Deletes a thread, and what crashes have left of it."""
        for space in map(self._run.space, (CHECKPOINTS, WRITES, VALUES)):
            blobs = [_blob_of(item.value) for item in space.items(f"{part}/")]
            space.delete_prefix(f"{part}/")
            self._delete_blobs(blobs)
        self._loaded[part] = Thread()
        self._latest = {key: value for key, value in self._latest.items() if not key.startswith(f"{part}/")}

    def delete(self, part: str, doomed: Iterable[StoredCheckpoint]) -> None:
        """Deletes checkpoints, their pending writes, and the values that no other checkpoint has."""
        thread, doomed = self.thread(part), list(doomed)
        places = [(quoted(stored.ns), quoted(stored.id)) for stored in doomed]
        checkpoints = [path(part, *at) for at in places]
        writes = [key for at in places for key in thread.write_keys[at]]
        values = sorted({self._value_key(part, stored, channel) for stored, channel in thread.drop(doomed)})
        for space, keys in ((CHECKPOINTS, checkpoints), (WRITES, writes), (VALUES, values)):
            self._delete(space, keys)

    def copy(self, source: str, target: str, name: str | None) -> None:
        """Copies a thread; `name` is the id of the target, `None` for the run's own thread."""
        operations = list[Operation]()
        for space in (VALUES, WRITES, CHECKPOINTS):
            for item in self._run.space(space).items(f"{source}/"):
                value = self._resolve(item.value)
                if space == CHECKPOINTS:
                    value = {**value, "thread": name}
                operations.append(self._put(space, target + item.key[len(source) :], value))
        for batch in batches(operations):
            self._run.write(*batch)
        self._loaded.pop(target, None)
        self._loaded[target] = self._read(f"{target}/").get(target, Thread())

    def _value_key(self, part: str, stored: StoredCheckpoint, channel: str) -> str:
        return path(part, quoted(stored.ns), quoted(channel), quoted(stored.values[channel]))

    def _read(self, prefix: str) -> dict[str, Thread]:
        """The threads whose keys begin with the prefix."""
        found: dict[str, Thread] = defaultdict(Thread)
        for item in self._run.space(CHECKPOINTS).items(prefix):
            part = item.key.partition("/")[0]
            record = self._resolve(item.value)
            stored = StoredCheckpoint(
                record["thread"],
                record["ns"],
                record["id"],
                record["parent"],
                typed(record["checkpoint"]),
                typed(record["metadata"]),
                record["values"],
            )
            found[part].add(stored)
        for item in self._run.space(WRITES).items(prefix):
            part, ns, id, *_ = item.key.split("/")
            record = self._resolve(item.value)
            task, rows = record["task"], record["writes"]
            writes = [StoredWrite(task, index, name, at, typed(value)) for index, name, at, *value in rows]
            found[part].write_keys[ns, id].append(item.key)
            found[part].merge((ns, id), writes)
        return dict(found)

    def _put(self, space: str, key: str, value: Any) -> Operation:
        """The operation that stores a value; a long one is stored as a blob first."""
        text = json.dumps(value)
        if len(text) <= MAX_INLINE_BYTES:
            return Operation.put(space, key, value)
        blob = _blob_key(space, key)
        self._run.space(BLOBS).blob_put(blob, text.encode())
        return Operation.put(space, key, {"blob": blob})

    def _get(self, space: str, key: str) -> Any:
        value = self._run.space(space).get(key)
        if value is None:
            raise LookupError("a value of a checkpoint is missing in the records: it was deleted")
        return self._resolve(value)

    def _resolve(self, value: Any) -> Any:
        """The value of a record, from its blob if it has one."""
        blob = _blob_of(value)
        if blob is None:
            return value
        content = self._run.space(BLOBS).blob_get(blob)
        if content is None:
            raise LookupError("a long value of a checkpoint is missing in the records: it was deleted")
        return json.loads(content)

    def _delete(self, space: str, keys: Sequence[str]) -> None:
        """Deletes records, then the blobs that they have."""
        blobs = [_blob_of(value) for value in self._run.space(space).get_many(keys).values()]
        for at in range(0, len(keys), BATCH_OPERATIONS):
            self._run.write(*(Operation.delete(space, key) for key in keys[at : at + BATCH_OPERATIONS]))
        self._delete_blobs(blobs)

    def _delete_blobs(self, blobs: Iterable[str | None]) -> None:
        for blob in blobs:
            if blob is not None:
                self._run.space(BLOBS).delete(blob)


def batches(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Operations in batches that fit into a request, in order; at least one batch."""
    batch, size = list[Operation](), 0
    for operation in operations:
        length = len(json.dumps(dict(operation.fields)))
        if batch and (len(batch) == BATCH_OPERATIONS or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(operation)
        size += length
    yield batch


def quoted(text: object) -> str:
    """A part of a key: quoted, so that it has no slash, or a digest of it if it is long."""
    part = urllib.parse.quote(str(text), safe="")
    if len(part) <= MAX_PART_CHARACTERS:
        return part
    return f"={hashlib.sha256(part.encode()).hexdigest()}"


def path(*parts: str) -> str:
    """A key of these parts, or the beginning of one. Each part is followed by a slash."""
    return "".join(f"{part}/" for part in parts)


def typed(stored: Sequence[str]) -> Typed:
    """A value as it is stored, for the serializer."""
    return stored[0], base64.b64decode(stored[1])


def untyped(value: Typed) -> tuple[str, str]:
    """A serialized value as JSON."""
    return value[0], base64.b64encode(value[1]).decode()


def _blob_key(space: str, key: str) -> str:
    return hashlib.sha256(f"{space}/{key}".encode()).hexdigest()


def _blob_of(value: Any) -> str | None:
    """The key of the blob that has the value of this record; `None` if the record has it itself."""
    return value["blob"] if is_object(value) and set(value) == {"blob"} else None
