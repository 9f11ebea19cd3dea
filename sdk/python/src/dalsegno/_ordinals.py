"""The ids that the client makes for calls, steps and waits: a turn, a name, and an ordinal.

What is done between two turns has `before-N` in the place of the turn, and what is done behind the plan of turn N has
`planned-N`. So it has other ids than the same in turn N, and a resume behind the plan finds it.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import NamedTuple


_PLACE = r"(?P<part>before-|planned-)?(?P<turn>\d+)"

_CALL = re.compile(_PLACE + r"\.(?P<tool>.+)\.[0-9a-f]{12}\.\d+")
"""The id of a tool's call that `dalsegno.tool` makes by default: `TURN.TOOL.HASH.K`."""

_CALL_INSIDE = re.compile(_PLACE + r"\..+\.[0-9a-f]{12}\.in-[0-9a-f]{8}\.\d+")
"""The id that an adapter makes for a call inside of another one."""


class Place(NamedTuple):
    """Where the agent has made a call, in the order of the places."""

    turn: int
    behind_plan: bool


def place_of(id: str, tool: str | None) -> Place | None:
    """The place in an id that the client has made; `None` for an id of the user's own.

    tool: the tool's name, where the store has kept it. Then an id has a place if the name comes behind it, whatever an
    adapter has put behind the name. A tool refuses ids of the user's own of that form, see `has_place`. Without the name
    an id of the user's own in the form of `dalsegno.tool`'s is taken for one of these.
    """
    made = _has_place(id, tool) if tool else _CALL.fullmatch(id) or _CALL_INSIDE.fullmatch(id)
    return Place(int(made["turn"]), made["part"] == "planned-") if made else None


def has_place(id: str, tool: str) -> bool:
    """Whether an id begins with a place and the name of its tool: `PLACE.TOOL.…`."""
    return _has_place(id, tool) is not None


def tool_of(id: str) -> str | None:
    """The tool's name in an id that `dalsegno.tool` has made; `None` for another id."""
    made = _CALL.fullmatch(id)
    return made["tool"] if made else None


def _has_place(id: str, tool: str) -> re.Match[str] | None:
    return re.match(rf"{_PLACE}\.{re.escape(tool)}\.", id)


@dataclass(slots=True, eq=False)
class Slot:
    """One id. It is in use from `Ordinals.take` until `done` or `reopen`."""

    id: str
    state: str = "running"

    def done(self) -> None:
        """The call is over. The next one with this name is another call."""
        self.state = "done"

    def reopen(self) -> None:
        """The call was left without an outcome. The next one with this name is the same call."""
        if self.state == "running":
            self.state = "open"


class Ordinals:
    """Counts what a turn does under each name, from 0.

    Invariant: a call whose outcome is unknown keeps its ordinal, so that the same call again has the same key. Two
    calls that run at the same time have two ordinals.
    """

    def __init__(self) -> None:
        self._slots: dict[str, list[Slot]] = {}
        self._lock = threading.Lock()

    def take(self, name: str) -> Slot:
        """The id for the next call with this name: `NAME.K`."""
        with self._lock:
            slots = self._slots.setdefault(name, [])
            for slot in slots:
                if slot.state == "open":
                    slot.state = "running"
                    return slot
            slots.append(Slot(f"{name}.{len(slots)}"))
            return slots[-1]

    def clear(self) -> None:
        """Begins to count anew."""
        with self._lock:
            self._slots.clear()
