"""A plugin of pytest: in the vendor's own tests `InMemorySessionStore` is a `RecordSessionStore`.

`pytest -p record_store_plugin` in the vendor's source distribution, whose files stay as they are.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import claude_agent_sdk
from claude_agent_sdk import SessionKey, SessionStore
from claude_agent_sdk._internal import session_store

from dalsegno import Run
from dalsegno.aio import AsyncRun
from dalsegno.claude import RecordSessionStore
from dalsegno.claude._store import parts, path_of
from dalsegno.testing.memory import MemoryGateway

_gateway = MemoryGateway()
_gateway.start_attempt()
os.environ.update(_gateway.environment)
_run: AsyncRun[Any] = AsyncRun(Run(dict, sigterm=False))
_run.sync._begin(False, 1)
_names = itertools.count()


class VendorStore(RecordSessionStore, SessionStore):
    """An empty store of its own, with the helpers for tests that the vendor's store has."""

    def __init__(self) -> None:
        super().__init__(_run, f"vendor-{next(_names)}")

    def get_entries(self, key: SessionKey) -> list[Any]:
        return self._load(path_of(key))

    @property
    def size(self) -> int:
        return sum(len(parts(key)) == 2 for key in self._metas.keys())

    def clear(self) -> None:
        for key in list(self._metas.keys()):
            self._delete(key)


for module in (claude_agent_sdk, session_store):
    setattr(module, "InMemorySessionStore", VendorStore)  # noqa: B010 - a type checker knows no other class there


def pytest_unconfigure() -> None:
    _run._portal.close()
    _gateway.close()
