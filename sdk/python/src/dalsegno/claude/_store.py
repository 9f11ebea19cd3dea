"""`RecordSessionStore`: transcripts of the Claude Agent SDK as records of a run."""

from __future__ import annotations

import json
import time
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from claude_agent_sdk import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
    fold_session_summary,
)

from dalsegno._records import BATCH_OPERATIONS, Operation
from dalsegno._shapes import is_object
from dalsegno.aio import AsyncRun

P = ParamSpec("P")
R = TypeVar("R")

INLINE_BYTES = 3 << 20
"""A longer entry is stored as a blob beside the transcript: a record's value has at most 4 MiB."""

BATCH_BYTES = 8 << 20
"""Bytes of entries in one batch, below the 16 MiB of a request."""

BLOB = "dalsegno.claude.blob"


class RecordSessionStore:
    """A `SessionStore` of the Claude Agent SDK. Give it to `ClaudeAgentOptions(session_store=…)`, or use `Session`.

    It has all methods, the optional ones too. An entry is stored once however often it is written: its `uuid` is its
    identity. An append is durable on return, and is refused (and the process ends) once another attempt has taken over.

    Records: an entry of a transcript is an entry of the key `project/session/`, or `project/session/subpath/`, in the
    space `NAME.entries`. The same key in `NAME.meta` has `{"mtime", "summary"}`.
    """

    def __init__(self, run: AsyncRun[Any], name: str = "claude") -> None:
        """name: of the spaces. Two stores with two names know nothing of each other."""
        self._run = run
        self._entries = run.sync.space(f"{name}.entries")
        self._metas = run.sync.space(f"{name}.meta")
        self._blobs = run.sync.space(f"{name}.blobs")
        self._known: dict[str, dict[str, Any]] = {}  # this attempt is the only writer: what it read stays true
        self._last_written = 0

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Adds entries, in order. Errors: `Refused`, as the writes of `Space`."""
        if entries:
            await self._call(self._append, key, list(entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """The entries of a transcript, in order; `None` if it has none."""
        return await self._call(self._load, path_of(key)) or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The sessions of a project: `session_id`, and `mtime` in milliseconds since 1970."""
        found = await self._call(self._sessions, project_key)
        return [{"session_id": session, "mtime": meta["mtime"]} for session, meta in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The summaries of a project's sessions, as the SDK has folded them."""
        return [meta["summary"] for _, meta in await self._call(self._sessions, project_key)]

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths of a session: the transcripts of its subagents."""
        prefix = path(key["project_key"], key["session_id"])
        found = await self._call(lambda: [*self._metas.keys(prefix)])
        return [parts(each)[2] for each in found if each != prefix]

    async def delete(self, key: SessionKey) -> None:
        """Removes a transcript, and those of its subpaths if the key has no subpath."""
        await self._call(self._delete, path_of(key))

    # In the thread of the requests.

    def _append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        at = path_of(key)
        self._last_written = max(int(time.time() * 1000), self._last_written + 1)
        before = self._known.get(at) or self._metas.get(at, {})
        meta: dict[str, Any] = {"mtime": self._last_written}
        if key.get("subpath") is None:
            summary = fold_session_summary(before.get("summary"), key, entries)
            meta["summary"] = {**summary, "mtime": self._last_written}
        batch: list[Operation] = []
        size = 0
        for entry in entries:
            length = len(json.dumps(entry))
            if len(batch) + 1 >= BATCH_OPERATIONS or (batch and size + length > BATCH_BYTES):
                self._run.sync.write(*batch)
                batch, size = [], 0
            batch.append(self._append_one(at, entry, length))
            size += min(length, INLINE_BYTES)
        self._run.sync.write(*batch, Operation.put(self._metas.name, at, meta))
        self._known[at] = meta

    def _append_one(self, at: str, entry: SessionStoreEntry, length: int) -> Operation:
        id = entry.get("uuid") or str(uuid.uuid4())
        if length <= INLINE_BYTES:
            return Operation.append(self._entries.name, at, id, entry)
        blob = f"{at}{id}"
        self._blobs.blob_put(blob, json.dumps(entry).encode())
        return Operation.append(self._entries.name, at, id, {BLOB: blob})

    def _load(self, at: str) -> list[Any]:
        return [self._read(item.value) for item in self._entries.items(at) if item.key == at]

    def _read(self, value: Any) -> Any:
        if not (is_object(value) and BLOB in value):
            return value
        content = self._blobs.blob_get(value[BLOB])
        if content is None:
            raise LookupError("an entry of the transcript is missing from the records")
        return json.loads(content)

    def _delete(self, at: str) -> None:
        """Removes what is under the key of a transcript. Nothing of another one is: a subpath is quoted as one name."""
        operations = [it for space in (self._metas, self._entries, self._blobs) for it in space._deletes(at)]
        for first in range(0, len(operations), BATCH_OPERATIONS):
            self._run.sync.write(*operations[first : first + BATCH_OPERATIONS])
        self._known = {key: meta for key, meta in self._known.items() if not key.startswith(at)}

    def _sessions(self, project_key: str) -> list[tuple[str, dict[str, Any]]]:
        """The sessions of a project, without their subpaths: id and meta of each."""
        found: list[tuple[str, dict[str, Any]]] = []
        for item in self._metas.items(path(project_key)):
            _, session, *subpath = parts(item.key)
            if not subpath:
                found.append((session, item.value))
        return found

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs it after what was asked for before. The SDK cancels what takes long: it is done all the same."""
        return await self._run._portal.call(function, *args, **kwargs)


def path(*names: str) -> str:
    """The key of these names. Each is quoted and followed by a slash, so that two lists of names never share a key."""
    return "".join(urllib.parse.quote(name, safe="") + "/" for name in names)


def parts(key: str) -> list[str]:
    """The names of a key."""
    return [urllib.parse.unquote(part) for part in key.split("/")[:-1]]


def path_of(key: SessionKey) -> str:
    """The key of a transcript."""
    subpath = key.get("subpath")
    return path(key["project_key"], key["session_id"], *([] if subpath is None else [subpath]))
