"""A checkpoint saver of LangGraph on a run's records: for tests only.

It uses three spaces:

- `checkpoints`: `thread/namespace/checkpoint/` has a checkpoint without its channels' values.
- `values`: `thread/namespace/channel/version/` has a channel's value.
- `writes`: `thread/namespace/checkpoint/task/index/` has a pending write.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)

from dalsegno import Run
from records import delete, parts, path, put, put_if_absent, read, write

CHECKPOINTS, VALUES, WRITES = SPACES = ("checkpoints", "values", "writes")

Config = Mapping[str, Any]
CheckpointKey = tuple[str, str, str]  # thread, namespace, checkpoint


class RecordSaver(BaseCheckpointSaver):
    def __init__(self, run: Run[Any]) -> None:
        super().__init__()
        self.run = run

    def put(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Mapping[str, Any]) -> Config:
        at = config["configurable"]
        thread, ns, id = at["thread_id"], at.get("checkpoint_ns", ""), checkpoint["id"]
        values = checkpoint["channel_values"]
        # What a version holds never changes.
        versions = [
            put(VALUES, path(thread, ns, channel, version), self._dump(values[channel]) if channel in values else None)
            for channel, version in new_versions.items()
        ]
        bare = {key: value for key, value in checkpoint.items() if key != "channel_values"}
        record = {
            "checkpoint": self._dump(bare),
            "metadata": self._dump(get_checkpoint_metadata(config, metadata)),
            "parent": at.get("checkpoint_id"),
        }
        write(self.run, [*versions, put(CHECKPOINTS, path(thread, ns, id), record)])
        return _config(thread, ns, id)

    def put_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        at = config["configurable"]
        task = (at["thread_id"], at.get("checkpoint_ns", ""), at["checkpoint_id"], task_id)
        operations = []
        for index, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, index)
            record = {"channel": channel, "value": self._dump(value), "path": task_path}
            # A special write may be replaced; a task that runs again keeps what it wrote first.
            operations.append((put if index < 0 else put_if_absent)(WRITES, path(*task, index), record))
        write(self.run, operations)

    def get_tuple(self, config: Config) -> Any:
        at = config["configurable"]
        found = list(self._find(at["thread_id"], at.get("checkpoint_ns", ""), get_checkpoint_id(config)))
        return self._tuple(*found[-1]) if found else None

    def list(
        self,
        config: Config | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[Any]:
        at = config["configurable"] if config else {}
        id = get_checkpoint_id(config) if config else None
        found = [*self._find(at.get("thread_id"), at.get("checkpoint_ns"), id)]
        until = before and get_checkpoint_id(before)
        for (thread, ns, id), record in sorted(found, key=lambda each: each[0][2], reverse=True):
            metadata = self._load(record["metadata"])
            if (until and id >= until) or any(metadata.get(key) != value for key, value in (filter or {}).items()):
                continue
            if limit is not None and (limit := limit - 1) < 0:
                return
            yield self._tuple((thread, ns, id), record)

    async def alist(self, config: Config | None, **more: Any) -> AsyncIterator[Any]:
        for each in self.list(config, **more):
            yield each

    def delete_thread(self, thread_id: str) -> None:
        self._delete((space, key) for space in SPACES for key, _ in read(self.run, space, path(thread_id)))

    def delete_for_runs(self, run_ids: Iterable[str]) -> None:
        found = self._find()
        self._forget([at for at, record in found if self._load(record["metadata"]).get("run_id") in run_ids])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        write(self.run, [
            put(space, path(target_thread_id, *parts(key)[1:]), record)
            for space in SPACES
            for key, record in read(self.run, space, path(source_thread_id))
        ])

    def prune(self, thread_ids: Iterable[str], *, strategy: str = "keep_latest") -> None:
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            found = [at for at, _ in self._find(thread)]
            latest = {ns: id for _, ns, id in found}  # in order: the last one stays
            self._forget([at for at in found if latest[at[1]] != at[2]])

    def _find(
        self, thread: str | None = None, ns: str | None = None, id: str | None = None
    ) -> Iterator[tuple[CheckpointKey, Any]]:
        """Checkpoints of a thread, a namespace, an id, or any; in order."""
        given: Iterable[str] = () if thread is None else (thread,)
        if thread is not None and ns is not None:
            given = (thread, ns) if id is None else (thread, ns, id)
        for key, record in read(self.run, CHECKPOINTS, path(*given)):
            found_thread, found_ns, found_id = found = (*parts(key),)
            wanted = zip((thread, ns, id), found)
            if all(part is None or str(part) == found_part for part, found_part in wanted):
                yield (found_thread, found_ns, found_id), record

    def _forget(self, checkpoints: Iterable[CheckpointKey]) -> None:
        """Deletes these checkpoints and their pending writes."""
        self._delete([
            (space, key)
            for at in checkpoints
            for space in (CHECKPOINTS, WRITES)
            for key, _ in read(self.run, space, path(*at))
        ])

    def _delete(self, keys: Iterable[tuple[str, str]]) -> None:
        if operations := [delete(space, key) for space, key in keys]:
            write(self.run, operations)

    def _tuple(self, at: CheckpointKey, record: Mapping[str, Any]) -> Any:
        thread, ns, _ = at
        checkpoint, values = self._load(record["checkpoint"]), {}
        stored = dict(read(self.run, VALUES, path(thread, ns)))
        for channel, version in checkpoint["channel_versions"].items():
            if (value := stored.get(path(thread, ns, channel, version))) is not None:
                values[channel] = self._load(value)
        writes = [(parts(key)[3], int(parts(key)[4]), write) for key, write in read(self.run, WRITES, path(*at))]
        writes.sort(key=lambda each: writes_sort_key(each[2]["path"], each[0], each[1]))
        return CheckpointTuple(
            config=_config(*at),
            checkpoint={**checkpoint, "channel_values": values},
            metadata=self._load(record["metadata"]),
            parent_config=_config(thread, ns, record["parent"]) if record["parent"] else None,
            pending_writes=[(task, write["channel"], self._load(write["value"])) for task, _, write in writes],
        )

    def _dump(self, value: Any) -> tuple[str, str]:
        kind, data = self.serde.dumps_typed(value)
        return kind, base64.b64encode(data).decode()

    def _load(self, stored: Sequence[str]) -> Any:
        return self.serde.loads_typed((stored[0], base64.b64decode(stored[1])))


def _config(thread: str, ns: str, id: str) -> Config:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


def _in_async(method: str) -> Callable[..., Any]:
    async def call(self: RecordSaver, *args: Any, **more: Any) -> Any:
        return getattr(self, method)(*args, **more)

    return call


for _method in ("put", "put_writes", "get_tuple", "delete_thread", "delete_for_runs", "copy_thread", "prune"):
    setattr(RecordSaver, f"a{_method}", _in_async(_method))
