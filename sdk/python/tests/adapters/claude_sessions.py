"""A session store of the Claude Agent SDK on the records of a `dalsegno.Run`: for tests only.

An entry of a transcript is an entry of the key `project/session/` or `project/session/subpath/` in the space
`<name>.entries`; the same key in `<name>.meta` holds when it was last written, and the session's summary.
"""

import time, uuid  # noqa: E401

from claude_agent_sdk import SessionStore, fold_session_summary

from records import append, delete, parts, path, put, read, write


class RecordSessionStore(SessionStore):
    def __init__(self, run, name="sessions"):
        self.run, self.entries, self.meta, self.last = run, f"{name}.entries", f"{name}.meta", 0

    async def append(self, key, entries):
        if not entries:
            return
        at = _key(key)
        self.last = max(int(time.time() * 1000), self.last + 1)
        before = dict(read(self.run, self.meta, at)).get(at, {})
        meta = {"mtime": self.last}
        if key.get("subpath") is None:
            meta["summary"] = {**fold_session_summary(before.get("summary"), key, entries), "mtime": self.last}
        # An entry's uuid makes it one, however often it is written.
        added = [append(self.entries, at, entry.get("uuid") or str(uuid.uuid4()), entry) for entry in entries]
        write(self.run, [*added, put(self.meta, at, meta)])

    async def load(self, key):
        at = _key(key)
        found = [entry for found, entry in read(self.run, self.entries, at) if found == at]
        return found or None

    async def list_sessions(self, project_key):
        return [{"session_id": session, "mtime": meta["mtime"]} for session, meta in self._sessions(project_key)]

    async def list_session_summaries(self, project_key):
        return [meta["summary"] for _, meta in self._sessions(project_key)]

    async def delete(self, key):
        at = _key(key)
        keys = {found for found, _ in read(self.run, self.meta, at)}
        doomed = keys if key.get("subpath") is None else keys & {at}
        write(self.run, [delete(space, gone) for gone in sorted(doomed) for space in (self.entries, self.meta)])

    async def list_subkeys(self, key):
        prefix = path(key["project_key"], key["session_id"])
        return [parts(found)[2] for found, _ in read(self.run, self.meta, prefix) if found != prefix]

    def _sessions(self, project_key):
        found = ((parts(key), meta) for key, meta in read(self.run, self.meta, path(project_key)))
        return [(key[1], meta) for key, meta in found if len(key) == 2]


def _key(key):
    subpath = key.get("subpath")
    return path(key["project_key"], key["session_id"], *([] if subpath is None else [subpath]))
