"""`RecordSessionStore`: the vendor's own suite, on the gateway in memory and on a real one, and what it does not ask."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk")

from claude_agent_sdk import SessionKey, SessionStoreEntry
from claude_agent_sdk.testing import run_session_store_conformance

import dalsegno.aio
from claude_context import attempt
from contract_gateways import ContractGateway
from dalsegno import _records
from dalsegno.aio import AsyncRun
from dalsegno.claude import RecordSessionStore
from dalsegno.claude._store import INLINE_BYTES
from dalsegno.testing.memory import MemoryGateway

KEY: SessionKey = {"project_key": "p", "session_id": "s"}


def entry(uuid: str, text: str = "") -> SessionStoreEntry:
    """An entry of a transcript. The vendor's type names three of its fields, and lets it have more."""
    made: Any = {"type": "user", "uuid": uuid, "text": text}
    found: SessionStoreEntry = made
    return found


Work = Callable[[AsyncRun[Any]], Awaitable[Any]]


@pytest.fixture
def attached(contract: ContractGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Work], Any]]:
    """Runs something in this process, attached to the run of the gateway in memory, or of a real one."""
    token = tmp_path / "token"
    token.write_text(contract.token)
    (tmp_path / "input").write_text("null")
    monkeypatch.setenv("DALSEGNO_URL", contract.url)
    monkeypatch.setenv("DALSEGNO_TOKEN_FILE", str(token))
    monkeypatch.setenv("DALSEGNO_INPUT_FILE", str(tmp_path / "input"))

    def run(work: Work) -> Any:
        async def main() -> Any:
            async with await dalsegno.aio.attach(heartbeat=False, sigterm=False) as run:
                found = await work(run)
                await run.finish()
                return found

        return asyncio.run(main())

    yield run


def test_the_store_conforms_in_all_fourteen_contracts(attached: Callable[[Work], Any]) -> None:
    names = itertools.count()

    async def work(run: AsyncRun[Any]) -> None:
        # Each contract wants an empty store: spaces that no other contract uses.
        await run_session_store_conformance(lambda: RecordSessionStore(run, f"sessions-{next(names)}"))

    attached(work)
    assert next(names) == 15  # one for each contract, and one that is asked for its methods


def test_an_entry_that_is_written_twice_is_stored_once(attached: Callable[[Work], Any]) -> None:
    async def work(run: AsyncRun[Any]) -> list[Any] | None:
        store = RecordSessionStore(run)
        await store.append(KEY, [entry("u1")])
        await store.append(KEY, [entry("u1"), entry("u2")])
        return await store.load(KEY)

    assert [it["uuid"] for it in attached(work)] == ["u1", "u2"]


def test_long_entries_and_many_entries_come_back_as_they_were(attached: Callable[[Work], Any]) -> None:
    many = [entry(f"u{number}", "é" * 40) for number in range(2_500)]
    long, last = entry("long", "ä" * (5 << 20)), entry("last")

    async def work(run: AsyncRun[Any]) -> Any:
        store = RecordSessionStore(run)
        await store.append(KEY, many)
        await store.append(KEY, [long, last])
        stored = await store.load(KEY)
        await store.delete(KEY)
        return stored, await store.load(KEY), [item.key async for item in run.space("claude.blobs").items()]

    stored, after, blobs = attached(work)
    assert (stored, after, blobs) == ([*many, long, last], None, [])


def test_a_cancelled_append_is_stored_all_the_same(attached: Callable[[Work], Any]) -> None:
    async def work(run: AsyncRun[Any]) -> Any:
        store = RecordSessionStore(run)
        for number in range(20):
            appending = asyncio.ensure_future(store.append(KEY, [entry(f"u{number}")]))
            await asyncio.sleep(0)
            appending.cancel()
        return await store.load(KEY)

    assert [it["uuid"] for it in attached(work)] == [f"u{number}" for number in range(20)]


@pytest.mark.parametrize("version", [2, 3])
def test_a_session_is_deleted_with_its_subpaths_and_its_long_entries_and_no_other(version: int) -> None:
    long, other = entry("long", "x" * INLINE_BYTES), KEY | {"session_id": "s2"}
    requests: list[str] = []

    async def work(run: AsyncRun[Any]) -> list[Any]:
        run.sync._transport._contract = version
        store = RecordSessionStore(run)
        for key in KEY, KEY | {"subpath": "a"}, other:
            await store.append(key, [entry("u1"), long])
        before = len(gateway.requests)
        await store.delete(KEY)
        requests.extend(gateway.requests[before:])
        loaded = [await store.load(key) for key in (KEY, KEY | {"subpath": "a"}, other)]
        await run.finish()
        return loaded

    with MemoryGateway() as gateway:
        assert attempt(gateway, work) == [None, None, [entry("u1"), long]]
        assert {key.split("/")[1] for _, key in gateway.rows.records} == {"s2"}
        assert requests == ["records"] if version == 3 else len(requests) < 8, "values are not read to be deleted"


def test_the_subpaths_of_a_session_are_listed_without_a_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(run: AsyncRun[Any]) -> list[str]:
        store = RecordSessionStore(run)
        for key in KEY, KEY | {"subpath": "a/b"}:
            await store.append(key, [entry("u1")])
        with monkeypatch.context() as patch:
            patch.delattr(_records, "read")  # keys are read in another way
            found = await store.list_subkeys(KEY)
        await run.finish()
        return found

    with MemoryGateway() as gateway:
        assert attempt(gateway, work) == ["a/b"]


def test_after_a_cancelled_request_that_ended_the_process_nothing_more_is_stored() -> None:
    async def work(run: AsyncRun[Any]) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(run.approval("buy", 1, title="Buy?", linger=0.5), 0.1)
        await RecordSessionStore(run).append(KEY, [entry("u1")])

    with MemoryGateway() as gateway:
        assert isinstance(attempt(gateway, work), dalsegno.Parked)
        assert not gateway.rows.records


OLD = """
import asyncio, sys
import dalsegno.aio
from dalsegno.claude import RecordSessionStore

KEY = {"project_key": "p", "session_id": "s"}

async def main():
    async with await dalsegno.aio.attach(heartbeat=False, sigterm=False) as run:
        store = RecordSessionStore(run)
        await store.append(KEY, [{"type": "user", "uuid": "u1"}])
        print("written", flush=True)
        sys.stdin.readline()
        await {write}
        print("accepted", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("write", ['store.append(KEY, [{"type": "user", "uuid": "u2"}])', "store.delete(KEY)"])
def test_an_attempt_that_was_replaced_writes_nothing_more(contract: ContractGateway, tmp_path: Path, write: str) -> None:
    (tmp_path / "token").write_text(contract.token)
    (tmp_path / "input").write_text("null")
    variables = {"DALSEGNO_URL": contract.url, "DALSEGNO_TOKEN_FILE": str(tmp_path / "token")}
    path = os.pathsep.join(it for it in sys.path if it)
    old = subprocess.Popen(
        [sys.executable, "-c", OLD.replace("{write}", write)],
        env={**os.environ, **variables, "DALSEGNO_INPUT_FILE": str(tmp_path / "input"), "PYTHONPATH": path},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert old.stdout and old.stdout.readline() == "written\n"
    contract.restart()
    out, err = old.communicate("\n", timeout=300)
    assert (old.returncode, out) == (1, "") and "FENCED" in err
    _, page = contract.get("records?space=claude.entries")
    assert [record["value"]["json"]["uuid"] for record in page["records"]] == ["u1"]
