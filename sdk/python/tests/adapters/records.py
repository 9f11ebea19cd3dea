"""What the adapter in this directory needs of a run's records, and how it makes keys: for tests only."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

from dalsegno import Operation, Run


def write(run: Run[Any], operations: Sequence[Operation]) -> None:
    """Applies operations in batches of 1,000; each batch is applied whole or not at all."""
    for at in range(0, len(operations), 1_000):
        run.write(*operations[at : at + 1_000])


def read(run: Run[Any], space: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every entry under keys with this prefix: (key, value), in order."""
    return ((item.key, item.value) for item in run.space(space).items(prefix))


def put(space: str, key: str, value: Any) -> Operation:
    return Operation.put(space, key, value)


def append(space: str, key: str, entry_id: str, value: Any) -> Operation:
    return Operation.append(space, key, entry_id, value)


def delete(space: str, key: str) -> Operation:
    return Operation.delete(space, key)


def path(*parts: object) -> str:
    """The key of these parts. Each is quoted and followed by a slash, so that two lists of parts never share a key."""
    return "".join(urllib.parse.quote(str(part), safe="") + "/" for part in parts)


def parts(key: str) -> list[str]:
    """The parts of a key."""
    return [urllib.parse.unquote(part) for part in key.split("/")[:-1]]
