"""`RecordSaver`: LangGraph's checkpoints in a run's records, and a turn of the run for each checkpoint of its own thread."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.runtime import RunControl

from dalsegno import _env
from dalsegno._run import Run
from dalsegno.aio import AsyncRun
from dalsegno.langgraph._io import Io
from dalsegno.langgraph._threads import OWN_THREAD, StoredCheckpoint, StoredWrite, Threads, Typed, quoted


class Session:
    """What a saver, its copies and `run_graph` share: the I/O thread, the index, and what the next turn reports."""

    def __init__(self, run: Run[Any] | AsyncRun[Any]) -> None:
        self.io = Io(run)
        self.threads = Threads(self.io.run)
        self.thread_id = _env.gateway_url().path.rstrip("/").split("/")[-1]
        self.control: RunControl | None = None
        """Of the graph that `run_graph` runs now."""
        self.inputs = 0
        """How many inputs `run_graph` was given in this process."""
        self._usage: dict[str, int] = {}
        self._lock = threading.Lock()

    def spend(self, **amounts: int) -> None:
        """Adds to what the next turn has spent, by the names of the contract."""
        with self._lock:
            for name, amount in amounts.items():
                self._usage[name] = self._usage.get(name, 0) + amount

    def take_usage(self) -> dict[str, int]:
        """What was spent since the last turn."""
        with self._lock:
            usage, self._usage = self._usage, {}
            return usage

    def drain_if_asked(self) -> None:
        """Lets the graph stop before its next step if this process has to leave: see `Run.check`."""
        run = self.io.run
        if self.control is not None and (run.cancelled or run.suspending or run.at_limit or run.stopping):
            self.control.request_drain("the run has to leave this process")


class RecordSaver(BaseCheckpointSaver[str]):
    """Stores the checkpoints of a graph in the records of a run: `graph = builder.compile(checkpointer=RecordSaver(run))`.

    A checkpoint of the run's own thread (`thread_id`, without a namespace) is a turn: it is committed with its records, or
    neither is. Checkpoints of subgraphs and of other threads, and pending writes, are batches of records. Each is durable
    on return. Use `durability="sync"`, as `run_graph` does: then no step begins before the turn before it is durable.

    The records are read once for each thread. From then on this process alone writes them: if another attempt has taken
    over, the gateway refuses what this one writes, and the process ends.

    Each method waits until the gateway has answered. Those for asyncio call the others in the thread of the requests.

    Errors: `Refused`, as `Run.commit` and `Space`: with `UNSETTLED_CALLS` while the outcome of an earlier attempt's call
    is unknown (`run_graph` asks the probes first), with `TOO_LARGE` for a value above the limits of the contract.
    """

    def __init__(self, run: Run[Any] | AsyncRun[Any], *, serde: Any = None) -> None:
        """run: what `attach` has returned. serde: LangGraph's serializer; by default LangGraph's own."""
        super().__init__(serde=serde)
        self.session = Session(run)
        """Shared with the copies that LangGraph makes by `with_allowlist`."""

    @property
    def thread_id(self) -> str:
        """The run's own thread: the run's id. A fork of the run goes on with it under its own id."""
        return self.session.thread_id

    # What LangGraph calls. `list` comes last, because its name hides the type.

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint with the id of the config, or the latest one of its thread and namespace; `None` without one."""
        return self.session.io.call(self._get_tuple, config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `get_tuple`."""
        return await self.session.io.acall(self.get_tuple, config)

    def put(
        self, config: RunnableConfig, checkpoint: Any, metadata: Any, new_versions: Mapping[str, Any]
    ) -> RunnableConfig:
        """Stores a checkpoint, and commits it as a turn if it is of the run's own thread. Returns its config."""
        return self.session.io.call(self._put, config, checkpoint, metadata, new_versions)

    async def aput(
        self, config: RunnableConfig, checkpoint: Any, metadata: Any, new_versions: Mapping[str, Any]
    ) -> RunnableConfig:
        """See `put`."""
        return await self.session.io.acall(self.put, config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Stores what a task has written on a checkpoint: all of it or nothing."""
        self.session.io.call(self._put_writes, config, writes, task_id, task_path)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See `put_writes`."""
        await self.session.io.acall(self.put_writes, config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        """Deletes a thread. After the run's own thread is deleted, the graph begins anew."""
        self.session.io.call(self.session.threads.delete_thread, self._part(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """See `delete_thread`."""
        await self.session.io.acall(self.delete_thread, thread_id)

    def delete_for_runs(self, run_ids: Iterable[str]) -> None:
        """Deletes the checkpoints whose metadata has one of these `run_id`s, and their writes."""
        self.session.io.call(self._delete_for_runs, set(run_ids))

    async def adelete_for_runs(self, run_ids: Iterable[str]) -> None:
        """See `delete_for_runs`."""
        await self.session.io.acall(self.delete_for_runs, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies all checkpoints of a thread, with their values and writes."""
        self.session.io.call(self._copy_thread, source_thread_id, target_thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See `copy_thread`."""
        await self.session.io.acall(self.copy_thread, source_thread_id, target_thread_id)

    def prune(self, thread_ids: Iterable[str], *, strategy: str = "keep_latest") -> None:
        """Deletes old checkpoints of threads. A rewind of the run cannot go back behind it.

        strategy: `keep_latest` keeps the latest checkpoint of each namespace, and those before it from which the value of
            a `DeltaChannel` is rebuilt. `delete` keeps none.
        """
        self.session.io.call(self._prune, [*thread_ids], strategy)

    async def aprune(self, thread_ids: Iterable[str], *, strategy: str = "keep_latest") -> None:
        """See `prune`."""
        await self.session.io.acall(lambda: self.prune(thread_ids, strategy=strategy))

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> dict[str, Any]:
        """For each `DeltaChannel`: what was written to it before the checkpoint, since the last stored value, and that."""
        return self.session.io.call(self._delta_history, config, channels)

    async def aget_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> dict[str, Any]:
        """See `get_delta_channel_history`."""
        return await self.session.io.acall(lambda: self.get_delta_channel_history(config=config, channels=channels))

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The version after this one. Versions of two branches differ, because each is the key of a value."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:032}.{random.random():016}"

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """See `list`."""
        for part, stored in await self.session.io.acall(self._select, config, **options):
            yield await self.session.io.acall(self._tuple, part, stored)

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """Yields checkpoints, the latest first: of a thread, of a namespace of it, or of all threads without a config.

        options: `filter`, values of the metadata; `before`, the config of a checkpoint; `limit`, a number.
        """
        for part, stored in self.session.io.call(self._select, config, **options):
            yield self.session.io.call(self._tuple, part, stored)

    # What runs in the I/O thread.

    def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        part, ns, id = self._place(config)
        known = self.session.threads.thread(part).checkpoints.get(quoted(ns), {})
        stored = known.get(quoted(id)) if id else max(known.values(), key=lambda it: it.id, default=None)
        return self._tuple(part, stored) if stored else None

    def _put(
        self, config: RunnableConfig, checkpoint: Any, metadata: Any, new_versions: Mapping[str, Any]
    ) -> RunnableConfig:
        session, run = self.session, self.session.io.run
        part, ns, parent = self._place(config)
        values = checkpoint["channel_values"]
        new = {name: self.serde.dumps_typed(values[name]) for name in new_versions if name in values}
        filled = session.threads.thread(part).filled[quoted(ns)]
        stored = StoredCheckpoint(
            None if part == OWN_THREAD else str(_configurable(config)["thread_id"]),
            ns,
            checkpoint["id"],
            parent,
            self.serde.dumps_typed({name: it for name, it in checkpoint.items() if name != "channel_values"}),
            self.serde.dumps_typed(get_checkpoint_metadata(config, metadata)),
            {
                name: it
                for name, it in checkpoint["channel_versions"].items()
                if name in new or (name, str(it)) in filled
            },
        )
        operations = session.threads.put(part, stored, new)
        if part == OWN_THREAD and not ns:
            event = {"step": metadata.get("step"), "source": metadata.get("source"), "checkpoint": stored.id}
            run.commit(
                run.next_turn, records=operations, events=[{"langgraph": event}], usage=session.take_usage() or None
            )
        else:
            run.write(*operations)
        session.threads.note(part, stored, new)
        session.drain_if_asked()
        return self._config(stored)

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> None:
        part, ns, id = self._place(config)
        if id is None:
            raise ValueError("put_writes: the config has no checkpoint_id")
        rows = [
            StoredWrite(task_id, WRITES_IDX_MAP.get(channel, index), channel, task_path, self.serde.dumps_typed(value))
            for index, (channel, value) in enumerate(writes)
        ]
        self.session.threads.put_writes(part, ns, id, task_id, rows)

    def _delete_for_runs(self, run_ids: set[str]) -> None:
        for part, thread in list(self.session.threads.all().items()):
            found = [it for known in thread.checkpoints.values() for it in known.values()]
            doomed = [it for it in found if self.serde.loads_typed(it.metadata).get("run_id") in run_ids]
            self.session.threads.delete(part, doomed)

    def _copy_thread(self, source: str, target: str) -> None:
        name = None if target == self.thread_id else target
        self.session.threads.copy(self._part(source), self._part(target), name)

    def _prune(self, thread_ids: Iterable[str], strategy: str) -> None:
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"prune: there is no strategy {strategy!r}")
        for part in map(self._part, thread_ids):
            if strategy == "delete":
                self.session.threads.delete_thread(part)
                continue
            for known in self.session.threads.thread(part).checkpoints.values():
                kept = self._needed(known)
                self.session.threads.delete(part, [it for id, it in known.items() if id not in kept])

    def _needed(self, known: Mapping[str, StoredCheckpoint]) -> set[str]:
        """The keys of the latest checkpoint of a namespace, and of those that its delta channels are rebuilt from."""
        latest = max(known.values(), key=lambda it: it.id, default=None)
        if latest is None:
            return set()
        kept = {quoted(latest.id)}
        missing = {*self.serde.loads_typed(latest.metadata).get("counters_since_delta_snapshot", {})} - {*latest.values}
        stored = latest
        while missing and stored.parent and (parent := known.get(quoted(stored.parent))):
            kept.add(quoted(parent.id))
            missing -= {*parent.values}
            stored = parent
        return kept

    def _delta_history(self, config: RunnableConfig, channels: Sequence[str]) -> dict[str, Any]:
        part, ns, id = self._place(config)
        threads = self.session.threads
        known = threads.thread(part).checkpoints.get(quoted(ns), {})
        stored = known.get(quoted(id)) if id else max(known.values(), key=lambda it: it.id, default=None)
        found: dict[str, Any] = {channel: {"writes": []} for channel in channels}
        remaining = {*channels}
        while remaining and stored and stored.parent and (stored := known.get(quoted(stored.parent))):
            for write in reversed(self._writes(part, stored)):
                if write.channel in remaining:
                    value = self.serde.loads_typed(write.value)
                    found[write.channel]["writes"].insert(0, (write.task, write.channel, value))
            for channel in remaining & {*stored.values}:
                found[channel]["seed"] = self.serde.loads_typed(threads.value(part, stored, channel))
            remaining -= {*stored.values}
        return found

    def _select(
        self,
        config: RunnableConfig | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Sequence[tuple[str, StoredCheckpoint]]:
        """The checkpoints that `list` yields, each with its thread."""
        threads = self.session.threads
        if config is None:
            everywhere = [
                (part, known) for part, thread in threads.all().items() for known in thread.checkpoints.values()
            ]
            found = [(part, it) for part, known in everywhere for it in known.values()]
        else:
            part, ns, id = self._place(config)
            of_all = threads.thread(part).checkpoints
            wanted = [of_all.get(quoted(ns), {})] if "checkpoint_ns" in _configurable(config) else of_all.values()
            found = [(part, it) for known in wanted for it in known.values() if id in (None, it.id)]
        until = get_checkpoint_id(before) if before else None
        found = [each for each in found if until is None or each[1].id < until]
        found.sort(key=lambda each: each[1].id, reverse=True)
        if filter:
            found = [each for each in found if self._matches(each[1], filter)]
        return found if limit is None else found[:limit]

    def _matches(self, stored: StoredCheckpoint, filter: Mapping[str, Any]) -> bool:
        metadata = self.serde.loads_typed(stored.metadata)
        return all(metadata.get(name) == value for name, value in filter.items())

    def _writes(self, part: str, stored: StoredCheckpoint) -> Sequence[StoredWrite]:
        """The pending writes of a checkpoint, in the order in which a step applies them."""
        written = self.session.threads.thread(part).writes.get((quoted(stored.ns), quoted(stored.id)), {})
        return sorted(written.values(), key=lambda it: writes_sort_key(it.path, it.task, it.index))

    def _tuple(self, part: str, stored: StoredCheckpoint) -> CheckpointTuple:
        def load(value: Typed) -> Any:
            return self.serde.loads_typed(value)

        checkpoint: Any = load(stored.checkpoint)
        checkpoint["channel_values"] = {
            name: load(self.session.threads.value(part, stored, name)) for name in stored.values
        }
        parent = self._config(stored, stored.parent) if stored.parent else None
        return CheckpointTuple(
            config=self._config(stored),
            checkpoint=checkpoint,
            metadata=load(stored.metadata),
            parent_config=parent,
            pending_writes=[(it.task, it.channel, load(it.value)) for it in self._writes(part, stored)],
        )

    def _part(self, thread_id: object) -> str:
        """A thread as a part of keys."""
        return OWN_THREAD if str(thread_id) == self.thread_id else quoted(thread_id)

    def _place(self, config: RunnableConfig) -> tuple[str, str, str | None]:
        """The thread, as a part of keys, the namespace and the checkpoint of a config."""
        at = _configurable(config)
        return self._part(at["thread_id"]), at.get("checkpoint_ns") or "", get_checkpoint_id(config) or None

    def _config(self, stored: StoredCheckpoint, id: str | None = None) -> RunnableConfig:
        thread = self.thread_id if stored.thread is None else stored.thread
        return {"configurable": {"thread_id": thread, "checkpoint_ns": stored.ns, "checkpoint_id": id or stored.id}}


def _configurable(config: RunnableConfig) -> dict[str, Any]:
    """What says the place of a checkpoint. A config that a graph passes on always has it."""
    return config.get("configurable", {})
