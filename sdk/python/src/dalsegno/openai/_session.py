"""`RecordSession`: a conversation in the records of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast
from urllib.parse import quote

from agents import SessionSettings
from agents.memory import SessionABC
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit

from dalsegno import _json
from dalsegno._records import BATCH_OPERATIONS, Operation
from dalsegno.aio import AsyncRun
from dalsegno.openai._link import Link, digest, link_of

if TYPE_CHECKING:
    from agents import TResponseInputItem

    from dalsegno._run import Run

P = ParamSpec("P")
R = TypeVar("R")

SPACE = "openai.session"
"""The space of the records. The key of an item is `SESSION/NUMBER`: the number has twelve digits and counts from 0."""

MAX_KEY_CHARACTERS = 480
BATCH_CHARACTERS = 8 << 20
"""Of the items in one batch, so that its body stays below the 16 MiB of a request."""


class RecordSession(SessionABC):
    """A session of the OpenAI Agents SDK whose items are records of the run, one key an item.

    Give it to `run_agent`: what a turn adds is then committed with the turn, or not at all. Elsewhere each write is
    durable on return.

    Sessions with the same id in one process are the same conversation. An item is JSON of at most 4 MiB.

    Errors of each method: `Refused`, see `Space`; `TypeError` or `ValueError` where an item is not JSON.
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        run: AsyncRun[Any],
        session_id: str = "main",
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        """session_id: any text. session_settings: its `limit` is how many of the latest items `get_items` returns."""
        self.session_id = session_id
        self.session_settings = coerce_session_settings(session_settings or {})
        self._run = run
        self._log = link_of(run).sessions.setdefault(session_id, SessionLog(run.sync, link_of(run), session_id))

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The items in order; with a limit (or that of the settings) the latest ones. A negative limit is none."""
        count = resolve_session_limit(limit, self.session_settings)
        return cast("list[TResponseInputItem]", await self._call(self._log.items, count))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Adds items at the end."""
        await self._call(self._log.add, [_json.copy(item) for item in items])

    async def pop_item(self) -> TResponseInputItem | None:
        """Removes the last item and returns it; `None` if there is none."""
        return cast("TResponseInputItem | None", await self._call(self._log.pop))

    async def clear_session(self) -> None:
        """Removes all items."""
        await self._call(self._log.clear)

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        link = link_of(self._run)
        if link.records is not None:  # the framework calls, in a turn of `run_agent`
            return await link.send(self._run, function, *args, **kwargs)
        return await self._run._portal.call(function, *args, **kwargs)


class SessionLog:
    """The items of one session id.

    Invariant: its methods run in the thread of the requests, one after the other. So the items in memory are those of the
    store and of the open turn, also where the caller of a method was cancelled. They are read once, because no other
    process may write while this attempt lives.
    """

    def __init__(self, run: Run[Any], link: Link, session_id: str) -> None:
        self._run, self._link = run, link
        quoted = quote(session_id, safe="")
        self._prefix = f"{quoted if len(quoted) <= MAX_KEY_CHARACTERS else digest(session_id)}/"
        self._items: dict[int, Any] | None = None  # by number, in order

    def items(self, limit: int | None) -> list[Any]:
        """Copies of the items, or of the latest ones."""
        items = list(self._loaded().values())
        if limit is not None and limit >= 0:
            items = items[len(items) - limit if limit < len(items) else 0 :]
        return cast("list[Any]", _json.copy(items))

    def add(self, items: list[Any]) -> None:
        """Adds items at the end."""
        known = self._loaded()
        first = next(reversed(known), -1) + 1
        numbered = dict(enumerate(items, first))
        self._write([Operation.put(SPACE, self._key(number), item) for number, item in numbered.items()])
        known.update(numbered)

    def pop(self) -> Any:
        """Removes the last item and returns it."""
        known = self._loaded()
        if not known:
            return None
        last = next(reversed(known))
        self._write([Operation.delete(SPACE, self._key(last))])
        return known.pop(last)

    def clear(self) -> None:
        """Removes all items."""
        known = self._loaded()
        self._write([Operation.delete(SPACE, self._key(number)) for number in known])
        known.clear()

    def forget(self) -> None:
        """Reads the items again when they are needed next: a turn that changed them was not committed."""
        self._items = None

    def _loaded(self) -> dict[int, Any]:
        if self._items is None:
            stored = self._run.space(SPACE).items(self._prefix)
            self._items = {int(item.key.removeprefix(self._prefix)): item.value for item in stored}
        return self._items

    def _write(self, operations: list[Operation]) -> None:
        """Keeps the operations for the turn that `run_agent` has open, or writes them now."""
        if self._link.records is not None:
            self._link.records += operations
            return
        batch: list[Operation] = []
        size = 0
        for operation in operations:
            length = len(_json.dumps(operation.fields.get("value")))
            if batch and (len(batch) == BATCH_OPERATIONS or size + length > BATCH_CHARACTERS):
                self._run.write(*batch)
                batch, size = [], 0
            batch.append(operation)
            size += length
        if batch:
            self._run.write(*batch)

    def _key(self, number: int) -> str:
        return f"{self._prefix}{number:012}"
