"""A pytest plugin: LangGraph's own tests with `RecordSaver` in the place of its saver in memory.

Each saver has a run of its own, at a gateway in memory over HTTP. The first thread that a saver is asked for is the run's own
thread, so its checkpoints are turns. `LEFT_OUT` are the tests that are not run, each with its reason: the table in
docs/guides/langgraph.md says the same.
"""

from __future__ import annotations

import os
import types
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from langgraph.checkpoint import memory

import dalsegno
from dalsegno import _attempt, _calls, _records, _run
from dalsegno.langgraph import RecordSaver
from dalsegno.testing.memory import MemoryGateway, _gateway

LEFT_OUT = {
    "test_delta_channel_snapshot_version_based": "reads the dict in which the saver in memory has its values",
    "test_bulk_update_state_replays_updates_in_the_order_given": "reads the dict in which it has its writes",
    "test_abulk_update_state_replays_updates_in_the_order_given": "reads the dict in which it has its writes",
    "test_stream_buffering_single_node": "compares times to a tenth of a second",
}

OTHER_STORES = ("sqlite", "sqlite_aes", "sqlite_aio")

# Tests replace `uuid.uuid4` by a sequence, and compare what LangGraph makes of it.
for _module in (_attempt, _calls, _records, _run, _gateway):
    _module.uuid = types.SimpleNamespace(uuid4=uuid.uuid4)  # type: ignore[attr-defined]

_gateways: list[MemoryGateway] = []

_with_saver: list[str] = []
"""The tests that have made a saver."""


class SwappedSaver(RecordSaver):
    """A `RecordSaver` with the constructor of LangGraph's saver in memory."""

    def __init__(self, *, serde: Any = None, factory: Any = None) -> None:
        gateway = MemoryGateway()
        _gateways.append(gateway)
        gateway.start_attempt()
        os.environ.update(gateway.environment)
        super().__init__(dalsegno.Run.attach(heartbeat=False, sigterm=False), serde=serde)
        self.session.thread_id = ""
        self.stack = ExitStack()

    def _part(self, thread_id: object) -> str:
        self.session.thread_id = self.session.thread_id or str(thread_id)
        return super()._part(thread_id)

    def __enter__(self) -> SwappedSaver:
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.__exit__(None, None, None)

    async def __aenter__(self) -> SwappedSaver:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stack.__exit__(None, None, None)


for name in ("InMemorySaver", "MemorySaver"):
    setattr(memory, name, SwappedSaver)


@pytest.fixture(autouse=True)
def _close_gateways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Closes the gateways of a test. Those that a module has made stay."""
    before = len(_gateways)
    yield
    if len(_gateways) > before:
        _with_saver.append(request.node.nodeid)
    for gateway in _gateways[before:]:
        gateway.close()
    del _gateways[before:]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes out the tests of other stores, which are not about the saver in memory, and those that are left out."""
    kept, gone = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        other = any(parameters.get(name) in OTHER_STORES for name in ("sync_checkpointer", "async_checkpointer"))
        (gone if other or getattr(item, "originalname", "") in LEFT_OUT else kept).append(item)
    config.hook.pytest_deselected(items=gone)
    items[:] = kept


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says how many of the tests are about the saver."""
    terminalreporter.write_line(f"{len(_with_saver)} tests have made a RecordSaver")
