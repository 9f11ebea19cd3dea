"""A plugin of pytest for the vendor's own tests of sessions: `SQLiteSession` is a session in the records of a run.

What the vendor's tests call a database is a part of the session's id. `LEFT_OUT` names the tests that are about SQLite, with the reason of each.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import agents
import agents.memory
import pytest

import dalsegno.aio
from contract_gateways import DevWorker
from dalsegno.aio import AsyncRun
from dalsegno.openai import RecordSession
from dalsegno.testing.memory import MemoryGateway

CONNECTIONS = "it is about SQLite connections of threads"
CORRUPT = "it writes a corrupt row by SQL"
COMPACTION = "it replaces items by a method of SQLiteSession that is no part of the vendor's interface of sessions"
INTERNAL_POP = "it checks an item in a transaction of SQLite, by a method that is no part of the interface of sessions"
ROLLBACK = "it is about the rollback of an SQLite transaction"

LEFT_OUT = {
    "test_sqlite_session_close_closes_worker_thread_connections": CONNECTIONS,
    "test_sqlite_session_reaps_connections_from_exited_worker_threads": CONNECTIONS,
    "test_sqlite_session_closes_retired_connections_before_the_next_allocation": CONNECTIONS,
    "test_sqlite_session_keeps_connections_of_live_worker_threads": CONNECTIONS,
    "test_sqlite_session_close_retries_quarantined_connection": CONNECTIONS,
    "test_sqlite_session_closed_rejects_empty_add_items": "it closes a session, and a session in records has nothing to close",
    "test_sqlite_session_pop_item_skips_corrupt_most_recent": CORRUPT,
    "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows": CORRUPT,
    "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows": CORRUPT,
    "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows": CORRUPT,
    "test_sqlite_session_file_lock_is_shared_across_instances": "it is about locks of a database's file",
    "test_sqlite_session_failed_add_items_releases_write_lock": ROLLBACK,
    "test_sqlite_session_failed_clear_session_rolls_back": ROLLBACK,
    "test_sqlite_session_failed_pop_item_releases_write_lock": ROLLBACK,
    "test_sqlite_session_rollback_failure_evicts_connection": ROLLBACK,
    "test_handoff_resume_after_cancelled_compaction_commits": COMPACTION,
    "test_encrypted_compaction_skips_unencrypted_stored_history": COMPACTION,
    "test_encrypted_pop_authentication_is_atomic_with_concurrent_mutations": INTERNAL_POP,
    "test_encrypted_pop_wrong_key_preserves_row_identity": INTERNAL_POP,
    "test_encrypted_pop_cancellation_waits_for_authentication_rollback": INTERNAL_POP,
    "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome": "it replaces SQLite's commit",
}

COUNTS = pytest.StashKey[tuple[int, int]]()

_memory_databases = itertools.count(1)


def _attach() -> AsyncRun[Any]:
    """A run of a real gateway if `DALSEGNO_BIN` names the program `dalsegno`, and one in memory otherwise."""
    program = os.environ.get("DALSEGNO_BIN")
    if program is None:
        gateway = MemoryGateway()
        atexit.register(gateway.close)
        gateway.start_attempt()
        os.environ.update(gateway.environment)
    else:
        directory = tempfile.TemporaryDirectory(prefix="dalsegno-")
        atexit.register(directory.cleanup)
        worker = DevWorker(program, Path(directory.name))
        atexit.register(worker.close)
        token = Path(directory.name) / "token"
        token.write_text(worker.token)
        os.environ.update(DALSEGNO_URL=worker.url, DALSEGNO_TOKEN_FILE=str(token))
    return asyncio.run(dalsegno.aio.attach(sigterm=False))


_run = _attach()


class SQLiteSession(RecordSession):
    """What the vendor's tests find under this name."""

    def __init__(self, session_id: str, db_path: str | Path = ":memory:", session_settings: Any = None) -> None:
        database = f"memory {next(_memory_databases)}" if str(db_path) == ":memory:" else str(db_path)
        super().__init__(_run, f"{database} {session_id}", session_settings)
        self.session_id = session_id

    def close(self) -> None:
        """Nothing is open."""


agents.SQLiteSession = agents.memory.SQLiteSession = SQLiteSession  # type: ignore[misc,assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that are about SQLite, and in other files than `test_session*.py` those without a session.

    Errors: `pytest.UsageError` for a name that no test has.
    """
    about = [item for item in items if item.path.name.startswith("test_session") or "SQLiteSession(" in _source(item)]
    run = [item for item in about if _name(item) not in LEFT_OUT]
    unknown = set(LEFT_OUT) - {_name(item) for item in about}
    if unknown:
        raise pytest.UsageError(f"the vendor has no such test any more: {sorted(unknown)}")
    config.hook.pytest_deselected(items=[item for item in items if item not in run])
    items[:] = run
    config.stash[COUNTS] = (len(run), len(about))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says how many of the vendor's tests ran."""
    run, about = config.stash.get(COUNTS, (0, 0))
    terminalreporter.write_line(f"{run} of the vendor's {about} tests of sessions were run")


def _name(item: pytest.Item) -> str:
    return getattr(item, "originalname", item.name)


def _source(item: pytest.Item) -> str:
    """The text of the test's function: the vendor's tests make their sessions in it."""
    return inspect.getsource(item.function) if isinstance(item, pytest.Function) else ""
