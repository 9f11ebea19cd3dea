"""The ids that the client makes for calls, steps and waits: a turn, a name, and an ordinal.

What is done between two turns has `before-N` in the place of the turn. So it has other ids than the same in turn N.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass


def turn_of(id: str) -> int | None:
    """The turn of the agent that an id begins with; `None` where it begins with something else."""
    number = re.match(r"(?:before-)?(\d+)\.", id)
    return int(number[1]) if number else None


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

    Invariant: a call whose outcome is unknown keeps its ordinal, so that the same call again has the same key. Two calls
    that run at the same time have two ordinals.
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
