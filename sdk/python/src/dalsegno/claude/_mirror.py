"""The one transcript of a session: what of it is stored, and what the CLI is to go on from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from claude_agent_sdk import SessionKey, SessionListSubkeysKey, SessionStoreEntry

from dalsegno._errors import Error
from dalsegno.aio import AsyncRun
from dalsegno.claude._store import RecordSessionStore
from dalsegno.claude._transcript import Resume, blocks, is_answer, marked, usage

WHERE: SessionListSubkeysKey = {"project_key": "run", "session_id": "conversation"}
MAIN: SessionKey = {"project_key": "run", "session_id": "conversation"}
"""The key of the transcript: a run has one conversation, whatever folder and id the CLI gives it."""


class Mirror(RecordSessionStore):
    """The store that a session gives to the SDK.

    Invariant: where an entry was not stored, `fail` has been called, and the session commits nothing more.
    """

    def __init__(self, run: AsyncRun[Any], fail: Callable[[BaseException], None]) -> None:
        super().__init__(run)
        self._fail = fail
        self._changed = asyncio.Condition()
        self._resume, self._marker = Resume(), False
        self._requests: set[str] = set()
        self._results: set[str] = set()
        self._finished: set[str] = set()
        self._stored: set[str] = set()
        self._usage: dict[str, tuple[int, int]] = {}
        self.answered_by: str | None = None
        """The uuid of the latest entry that the model has said."""

    @property
    def tokens(self) -> tuple[int, int]:
        """What all messages of the stored transcript cost: tokens in, and out."""
        return sum(it[0] for it in self._usage.values()), sum(it[1] for it in self._usage.values())

    async def read(self) -> list[Any]:
        """The entries that are stored, in order."""
        entries = await super().load(MAIN) or []
        self._usage.update(usage(entries))
        return entries

    async def clear(self) -> None:
        """Removes the transcript: the conversation begins again."""
        await super().delete(MAIN)
        self._usage.clear()

    def begin(self, resume: Resume, marker: bool) -> None:
        """The CLI is about to start: this is what `load` gives it, with the marker of an interrupted call or without."""
        self._resume, self._marker = resume, marker
        self._requests = {block["id"] for entry in resume.kept for block in blocks(entry, "tool_use")}
        self._results = {block["tool_use_id"] for entry in resume.kept for block in blocks(entry, "tool_result")}
        self._finished.clear()
        self._stored.clear()
        self.answered_by = next((it.get("uuid") for it in reversed(resume.kept) if is_answer(it)), None)

    def require(self, uuid: str) -> None:
        """Errors: `Error` if the entry with this id has not come since `begin`: the transcript has a hole."""
        if uuid not in self._stored:
            raise Error("the CLI has not handed over the transcript of its answer")

    def finished(self, id: str) -> None:
        """The CLI has the result of a call."""
        self._finished.add(id)

    async def wait_for_call(self, id: str, seconds: float) -> None:
        """Returns when the message that asks for the call is stored, and the results of the calls before it.

        Errors: `Error` after so many seconds.
        """

        def is_stored() -> bool:
            return id in self._requests and self._finished <= self._results

        async def wait() -> None:
            async with self._changed:
                await self._changed.wait_for(is_stored)

        try:
            await asyncio.wait_for(wait(), seconds)
        except asyncio.TimeoutError:
            raise Error(f"the CLI has not handed over what to store before a tool runs, for {seconds:.0f} s") from None

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """See `RecordSessionStore.append`. A failure ends the session, because the transcript would have a hole."""
        try:
            await super().append(_here(key), entries)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)
            raise Error("the transcript could not be stored") from error
        async with self._changed:
            self._note(entries, main=key.get("subpath") is None)
            self._changed.notify_all()

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """What the conversation goes on from."""
        if key.get("subpath") is not None:
            return await super().load(_here(key))
        entries: list[Any] = marked(self._resume) if self._marker else list(self._resume.kept)
        return entries

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """See `RecordSessionStore.list_subkeys`."""
        return await super().list_subkeys(WHERE)

    def _note(self, entries: Sequence[Any], main: bool) -> None:
        self._stored.update(entry["uuid"] for entry in entries if entry.get("uuid"))
        for entry in entries:
            self._requests.update(block["id"] for block in blocks(entry, "tool_use"))
            self._results.update(block["tool_use_id"] for block in blocks(entry, "tool_result"))
            if main and is_answer(entry):
                self.answered_by = entry.get("uuid")
        self._usage.update(usage(entries))


def _here(key: SessionKey) -> SessionKey:
    """The key of the run's conversation, or of a subagent in it: each process of the CLI names a session of its own."""
    here: SessionKey = {**MAIN}
    if "subpath" in key:
        here["subpath"] = key["subpath"]
    return here
