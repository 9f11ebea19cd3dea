"""A checkpoint saver of LangGraph on the records of a `dalsegno.Run`: for tests only.

`checkpoints` has a checkpoint without its channels' values under `thread/namespace/checkpoint/`; `values` a channel's
value under `thread/namespace/channel/version/`; `writes` a pending write under `thread/namespace/checkpoint/task/index/`.
"""

import base64

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple, get_checkpoint_id, get_checkpoint_metadata, writes_sort_key,
)

from records import delete, parts, path, put, put_if_absent, read, write

CHECKPOINTS, VALUES, WRITES = SPACES = ("checkpoints", "values", "writes")


class RecordSaver(BaseCheckpointSaver):
    def __init__(self, run):
        super().__init__()
        self.run = run

    def put(self, config, checkpoint, metadata, new_versions):
        at = config["configurable"]
        thread, ns, id = at["thread_id"], at.get("checkpoint_ns", ""), checkpoint["id"]
        values = checkpoint["channel_values"]
        # What a version holds never changes.
        kept = [
            put(VALUES, path(thread, ns, channel, version), self._dump(values[channel]) if channel in values else None)
            for channel, version in new_versions.items()
        ]
        bare = {key: value for key, value in checkpoint.items() if key != "channel_values"}
        record = {
            "checkpoint": self._dump(bare),
            "metadata": self._dump(get_checkpoint_metadata(config, metadata)),
            "parent": at.get("checkpoint_id"),
        }
        write(self.run, [*kept, put(CHECKPOINTS, path(thread, ns, id), record)])
        return _config(thread, ns, id)

    def put_writes(self, config, writes, task_id, task_path=""):
        at = config["configurable"]
        place = (at["thread_id"], at.get("checkpoint_ns", ""), at["checkpoint_id"], task_id)
        operations = []
        for index, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, index)
            record = {"channel": channel, "value": self._dump(value), "path": task_path}
            # A special write may be replaced; a task that runs again keeps what it wrote first.
            operations.append((put if index < 0 else put_if_absent)(WRITES, path(*place, index), record))
        write(self.run, operations)

    def get_tuple(self, config):
        at = config["configurable"]
        found = list(self._find(at["thread_id"], at.get("checkpoint_ns", ""), get_checkpoint_id(config)))
        return self._tuple(*found[-1]) if found else None

    def list(self, config, *, filter=None, before=None, limit=None):
        at = config["configurable"] if config else {}
        found = list(self._find(at.get("thread_id"), at.get("checkpoint_ns"), config and get_checkpoint_id(config)))
        until = before and get_checkpoint_id(before)
        for (thread, ns, id), record in sorted(found, key=lambda each: each[0][2], reverse=True):
            metadata = self._load(record["metadata"])
            if (until and id >= until) or any(metadata.get(key) != value for key, value in (filter or {}).items()):
                continue
            if limit is not None and (limit := limit - 1) < 0:
                return
            yield self._tuple((thread, ns, id), record)

    async def alist(self, config, **more):
        for each in self.list(config, **more):
            yield each

    def delete_thread(self, thread_id):
        self._delete((space, key) for space in SPACES for key, _ in read(self.run, space, path(thread_id)))

    def delete_for_runs(self, run_ids):
        found = self._find()
        self._forget(at for at, record in found if self._load(record["metadata"]).get("run_id") in run_ids)

    def copy_thread(self, source_thread_id, target_thread_id):
        write(self.run, [
            put(space, path(target_thread_id, *parts(key)[1:]), record)
            for space in SPACES for key, record in read(self.run, space, path(source_thread_id))
        ])

    def prune(self, thread_ids, *, strategy="keep_latest"):
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            found = [at for at, _ in self._find(thread)]
            latest = {ns: id for _, ns, id in found}  # in order: the last one stays
            self._forget(at for at in found if latest[at[1]] != at[2])

    def _find(self, thread=None, ns=None, id=None):
        """Checkpoints of a thread, a namespace, an id, or any; in order."""
        given = [part for part in (thread, ns, id) if part is not None] if thread is not None and ns is not None else []
        prefix = path(*given) if given else path(thread) if thread is not None else ""
        for key, record in read(self.run, CHECKPOINTS, prefix):
            at = tuple(parts(key))
            if all(part is None or str(part) == found for part, found in zip((thread, ns, id), at)):
                yield at, record

    def _forget(self, places):
        self._delete([
            (space, key) for at in list(places) for space in (CHECKPOINTS, WRITES)
            for key, _ in read(self.run, space, path(*at))
        ])

    def _delete(self, keys):
        if operations := [delete(space, key) for space, key in keys]:
            write(self.run, operations)

    def _tuple(self, at, record):
        thread, ns, id = at
        checkpoint, values = self._load(record["checkpoint"]), {}
        kept = dict(read(self.run, VALUES, path(thread, ns)))
        for channel, version in checkpoint["channel_versions"].items():
            if (value := kept.get(path(thread, ns, channel, version))) is not None:
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

    def _dump(self, value):
        kind, data = self.serde.dumps_typed(value)
        return [kind, base64.b64encode(data).decode()]

    def _load(self, kept):
        return self.serde.loads_typed((kept[0], base64.b64decode(kept[1])))


def _config(thread, ns, id):
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


def _in_async(method):
    async def call(self, *args, **more):
        return getattr(self, method)(*args, **more)
    return call


for _method in ("put", "put_writes", "get_tuple", "delete_thread", "delete_for_runs", "copy_thread", "prune"):
    setattr(RecordSaver, f"a{_method}", _in_async(_method))
