"""What a session commits: its turns, its answers, and how far it has come."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

from dalsegno._errors import Error
from dalsegno._records import Operation
from dalsegno.aio import AsyncRun
from dalsegno.claude._mirror import Mirror
from dalsegno.claude._transcript import Resume, plan

KEY = "progress"

REMEMBERED_CALLS = 100
"""The calls after the last stored result are asked for again: those of one message at most."""


class Progress:
    """How far a session has come, in the space `claude`.

    The key `progress` has `{"answeredBy", "calls", "counted", "dropped"}`: the last entry of the latest answer, the
    latest tool calls that have a turn, the tokens that turns have counted, and the entries of the transcript that do not
    belong to the conversation any more. The key `prompt/N` has `{"sha256", "result"}` of the N-th prompt, from 1. Both
    are written with a turn, or not at all.
    """

    def __init__(self, run: AsyncRun[Any], mirror: Mirror) -> None:
        self._run, self._mirror = run, mirror
        self._space = run.space("claude")
        self._fields: dict[str, Any] = {}
        self._lock = asyncio.Lock()
        self._prompts = 0

    async def load(self) -> None:
        """Reads what earlier attempts have written. Call it once."""
        self._fields = await self._space.get(KEY, {})

    async def next_prompt(self, prompt: str) -> tuple[bool, str]:
        """Begins with the next prompt. Returns whether it is answered already, and the answer.

        Errors: `Error` where it was another one in an earlier attempt.
        """
        self._prompts += 1
        stored = await self._space.get(self._prompt_key)
        if stored is None:
            return False, ""
        if stored["sha256"] != _digest(prompt):
            raise Error(f"prompt {self._prompts} was another one in an earlier attempt: prompts come in the same order")
        return True, stored["result"]

    async def resume(self) -> Resume:
        """Where the conversation goes on. What does not belong to it any more is named in the records."""
        dropped = set(self._fields.get("dropped", ()))
        entries = await self._mirror.read()
        resume = plan([entry for entry in entries if entry.get("uuid") not in dropped], self._fields.get("answeredBy"))
        if not resume.kept and entries:
            spent, counted = self._mirror.tokens, self._counted
            await self._mirror.clear()
            await self._write({"dropped": [], "counted": [counted[0] - spent[0], counted[1] - spent[1]]})
        elif not dropped.issuperset(resume.dropped):
            await self._write({"dropped": sorted(dropped.union(resume.dropped))})
        return resume

    async def commit_call(self, name: str, id: str, open_calls: Sequence[str]) -> None:
        """Commits the turn of a tool call, once however often the CLI makes the call."""
        async with self._lock:
            calls = self._fields.get("calls", [])
            if id not in calls:
                changes = {"calls": [*calls, id][-REMEMBERED_CALLS:]}
                await self._commit(changes, (), [{"tool": name, "id": id}], {"toolCalls": 1}, open_calls, None)

    async def park(self, name: str, id: str, wait: str, cost: int = 0) -> None:
        """Commits a turn, and parks until the wait is answered. Errors: always, `Parked`. cost: as `commit_answer`."""
        async with self._lock:
            await self._commit({}, (), [{"waitsFor": name, "id": id}], {"costMicroUSD": cost}, (), wait)

    async def commit_answer(self, prompt: str, result: str, answered_by: str | None, cost: int = 0) -> None:
        """Commits the turn that answers the prompt. cost: millionths of a US dollar."""
        answer = Operation.put(self._space.name, self._prompt_key, {"sha256": _digest(prompt), "result": result})
        async with self._lock:
            changes = {"answeredBy": answered_by}
            await self._commit(changes, (answer,), [{"answer": result}], {"costMicroUSD": cost}, (), None)

    async def _commit(
        self,
        changes: dict[str, Any],
        records: Sequence[Operation],
        events: Sequence[Any],
        usage: dict[str, int],
        open_calls: Sequence[str],
        park: str | None,
    ) -> None:
        spent, counted = self._mirror.tokens, self._counted
        usage = {**usage, "tokensIn": spent[0] - counted[0], "tokensOut": spent[1] - counted[1]}
        fields = {**self._fields, **changes, "counted": list(spent)}
        await self._run.commit(
            self._run.next_turn,
            events=events,
            usage={name: amount for name, amount in usage.items() if amount > 0} or None,
            records=[*records, Operation.put(self._space.name, KEY, fields)],
            open_calls=open_calls,
            park=None if park is None else [park],
        )
        self._fields = fields

    async def _write(self, changes: dict[str, Any]) -> None:
        fields = {**self._fields, **changes}
        await self._space.put(KEY, fields)
        self._fields = fields

    @property
    def _counted(self) -> tuple[int, int]:
        tokens_in, tokens_out = self._fields.get("counted", (0, 0))
        return tokens_in, tokens_out

    @property
    def _prompt_key(self) -> str:
        return f"prompt/{self._prompts:06}"


def _digest(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()
