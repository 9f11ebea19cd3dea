"""A session store of the Claude Agent SDK on a run's records: for tests only.

A transcript's entry is an entry of the key `project/session/` or `project/session/subpath/` in the space
`<name>.entries`. The same key in `<name>.meta` holds when it was last written, and the session's summary.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from claude_agent_sdk import SessionStore, fold_session_summary

from dalsegno import Run
from records import append, delete, parts, path, put, read, write


class RecordSessionStore(SessionStore):
    def __init__(self, run: Run[Any], name: str = "sessions") -> None:
        self.run = run
        self.entries = f"{name}.entries"
        self.meta = f"{name}.meta"
        self.last_written = 0  # milliseconds since 1970; each append is later than the one before

    async def append(self, key: Mapping[str, str], entries: Sequence[Mapping[str, Any]]) -> None:
        if not entries:
            return
        at = _key(key)
        self.last_written = max(int(time.time() * 1000), self.last_written + 1)
        before = dict(read(self.run, self.meta, at)).get(at, {})
        meta: dict[str, Any] = {"mtime": self.last_written}
        if key.get("subpath") is None:
            summary = fold_session_summary(before.get("summary"), key, entries)
            meta["summary"] = {**summary, "mtime": self.last_written}
        # An entry's uuid is its identity: it is stored once, however often it is written.
        added = [append(self.entries, at, entry.get("uuid") or str(uuid.uuid4()), entry) for entry in entries]
        write(self.run, [*added, put(self.meta, at, meta)])

    async def load(self, key: Mapping[str, str]) -> list[Any] | None:
        at = _key(key)
        found = [entry for found, entry in read(self.run, self.entries, at) if found == at]
        return found or None

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        return [{"session_id": session, "mtime": meta["mtime"]} for session, meta in self._sessions(project_key)]

    async def list_session_summaries(self, project_key: str) -> list[Any]:
        return [meta["summary"] for _, meta in self._sessions(project_key)]

    async def delete(self, key: Mapping[str, str]) -> None:
        at = _key(key)
        keys = {found for found, _ in read(self.run, self.meta, at)}
        doomed = keys if key.get("subpath") is None else keys & {at}
        write(self.run, [delete(space, gone) for gone in sorted(doomed) for space in (self.entries, self.meta)])

    async def list_subkeys(self, key: Mapping[str, str]) -> list[str]:
        prefix = path(key["project_key"], key["session_id"])
        return [parts(found)[2] for found, _ in read(self.run, self.meta, prefix) if found != prefix]

    def _sessions(self, project_key: str) -> Iterator[tuple[str, Any]]:
        """The sessions of a project, without their subpaths: id and meta of each."""
        for key, meta in read(self.run, self.meta, path(project_key)):
            _, session, *subpath = parts(key)
            if not subpath:
                yield session, meta


def _key(key: Mapping[str, str]) -> str:
    subpath = key.get("subpath")
    return path(key["project_key"], key["session_id"], *([] if subpath is None else [subpath]))
