"""`RecordConversationStore`: conversations in the records of the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessagesTypeAdapter

from dalsegno._records import Operation
from dalsegno._run import Run
from dalsegno.aio._run import AsyncRun
from dalsegno.pydantic_ai._journal import send

PART_CHARS = 1_000_000
"""Characters of a message in one record: in UTF-8 they are below the 4 MiB that a record's value may have."""

BATCH_CHARS = 2_000_000
BATCH_OPERATIONS = 500

_records: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)


class RecordConversationStore(ConversationStore):
    """Stores conversations in the records of the run, each message once.

    ```python
    store = RecordConversationStore(run)
    async with run.turn():
        conversation = await store.load("support") or Conversation(conversation_id="support")
        result = await agent.run(question, conversation=conversation)
        await store.save(result)
    ```

    A save in an open turn is stored with the commit of the turn, or not at all; reads in the turn see it before. Outside
    of a turn it is durable on return. A rewind takes conversations back with the turns. `delete` also deletes the
    messages that no other conversation has.

    space: the space of the records. Only this store writes to it.

    Errors: as `ConversationStore` and `Space`; a conversation's id has at most 500 bytes, percent-encoded.
    """

    def __init__(self, run: Run[Any] | AsyncRun[Any], *, space: str = "conversations") -> None:
        self._run: Run[Any] = run.sync if isinstance(run, AsyncRun) else run
        self._space = self._run.space(space)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """See `ConversationStore.read_record`."""
        value = await self._get(_record_key(conversation_id))
        return None if value is None else _records.validate_python(value)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """See `ConversationStore.read_records`. It reads the records of all conversations of the run."""
        values = await self._all("record/")
        records = [_records.validate_python(value) for value in values.values()]
        matching = [record for record in records if scope is None or record.scope == scope]
        return sorted(matching, key=lambda record: record.updated_at, reverse=True)[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """See `ConversationStore.write_record`. Only the current attempt of the run can write, so nobody else does."""
        stored = await self.read_record(record.conversation_id)
        if (stored.revision if stored is not None else None) != expected_revision:
            raise ConversationConflict(record.conversation_id)
        known = {entry.id for entry in new_entries}
        if record.head_id is not None and record.head_id not in known and not await self._has(record.head_id):
            raise ConversationConflict(record.conversation_id)
        entries = [operation for entry in new_entries for operation in self._entry(entry)]
        await self._write(entries, [self._put(_record_key(record.conversation_id), _records.dump_python(record, mode="json"))])

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """See `ConversationStore.delete_record`."""
        stored = await self.read_record(conversation_id)
        if stored is None or stored.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        entries = await self._all("entry/")
        parents = {value["id"]: value["parent_id"] for value in entries.values()}
        reachable: set[str] = set()
        for record in await self.read_records():
            for id in [record.head_id, *record.branches] if record.conversation_id != conversation_id else []:
                while id is not None and id not in reachable:
                    reachable.add(id)
                    id = parents[id]
        stale = [value for value in entries.values() if value["id"] not in reachable]
        keys = [key for value in stale for key in (_entry_key(value["id"]), *_part_keys(value))]
        deletes = [Operation.delete(self._space.name, key) for key in [_record_key(conversation_id), *keys]]
        await self._write([], deletes)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """See `ConversationStore.read_entry`. Errors: `KeyError` where it is not stored."""
        value = await self._get(_entry_key(entry_id))
        if value is None:
            raise KeyError(entry_id)
        return await self._decode(value)

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """See `ConversationStore.read_history`. Without a limit it reads the entries of all conversations in one go."""
        if limit is not None:
            return await super().read_history(head_id, limit=limit)
        values = {value["id"]: value for value in (await self._all("entry/")).values()}
        history: list[ConversationEntry] = []
        while head_id is not None:
            history.append(await self._decode(values[head_id]))
            head_id = history[-1].parent_id
        return history[::-1]

    async def _has(self, entry_id: str) -> bool:
        return await self._get(_entry_key(entry_id)) is not None

    def _put(self, key: str, value: Any) -> Operation:
        return Operation.put(self._space.name, key, value)

    def _entry(self, entry: ConversationEntry) -> Iterator[Operation]:
        """An entry as records. A large message is cut into parts."""
        message = ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")[0]
        value: dict[str, Any] = {"id": entry.id, "parent_id": entry.parent_id, "kind": entry.kind}
        text = json.dumps(message, ensure_ascii=False)
        if len(text) <= PART_CHARS:
            yield self._put(_entry_key(entry.id), {**value, "message": message})
            return
        parts = [text[at : at + PART_CHARS] for at in range(0, len(text), PART_CHARS)]
        value = {**value, "parts": len(parts)}
        for key, part in zip(_part_keys(value), parts):
            yield self._put(key, part)
        yield self._put(_entry_key(entry.id), value)

    async def _decode(self, value: dict[str, Any]) -> ConversationEntry:
        message = value.get("message")
        if message is None:
            message = json.loads("".join([await self._get(key) for key in _part_keys(value)]))
        decoded = ModelMessagesTypeAdapter.validate_python([message])[0]
        return ConversationEntry(id=value["id"], parent_id=value["parent_id"], message=decoded)

    async def _get(self, key: str) -> Any:
        unwritten = self._unwritten()
        return unwritten[key] if key in unwritten else await send(self._run, self._space.get, key)

    async def _all(self, prefix: str) -> dict[str, Any]:
        """The values under keys with this prefix, by key."""
        stored = await send(self._run, lambda: {item.key: item.value for item in self._space.items(prefix)})
        merged = {**stored, **{key: value for key, value in self._unwritten().items() if key.startswith(prefix)}}
        return {key: value for key, value in merged.items() if value is not None}

    def _unwritten(self) -> dict[str, Any]:
        """What the turns that are not committed write, by key; `None` where they delete."""
        turn = self._run._turn
        operations = [*self._run._pending.records, *(turn._draft.records if turn is not None else ())]
        own = (it.fields for it in operations if it.fields["space"] == self._space.name)
        return {fields["key"]: fields.get("value") for fields in own}

    async def _write(self, entries: list[Operation], rest: list[Operation]) -> None:
        """Writes entries, and what refers to them.

        In a turn all of it goes with the turn, unless the entries are too large for one boundary. Then they are written
        at once: without the record that refers to them nobody sees them.
        """
        batches = list(_batches(entries))
        turn = self._run._turn
        if turn is not None and len(batches) < 2:
            turn.record(*entries, *rest)
            return
        for batch in batches:
            await send(self._run, self._run.write, *batch)
        if turn is not None:
            turn.record(*rest)
        else:
            await send(self._run, self._run.write, *rest)


def _record_key(conversation_id: str) -> str:
    return f"record/{quote(conversation_id, safe='')}"


def _entry_key(entry_id: str) -> str:
    return f"entry/{quote(entry_id, safe='')}"


def _part_keys(value: dict[str, Any]) -> list[str]:
    return [f"part/{quote(value['id'], safe='')}/{number:06}" for number in range(value.get("parts", 0))]


def _batches(operations: list[Operation]) -> Iterator[list[Operation]]:
    """Operations in batches that the gateway accepts."""
    batch: list[Operation] = []
    size = 0
    for operation in operations:
        chars = len(json.dumps(operation.fields["value"], ensure_ascii=False))
        if batch and (len(batch) >= BATCH_OPERATIONS or size + chars > BATCH_CHARS):
            yield batch
            batch, size = [], 0
        batch.append(operation)
        size += chars
    if batch:
        yield batch
