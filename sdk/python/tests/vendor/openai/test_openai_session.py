"""`RecordSession` outside of `run_agent`: what is durable, and how it is stored. In this process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("agents.memory", reason="openai-agents is not installed: hack/adapters.sh runs these tests")

from agents import SessionSettings

from dalsegno.openai import RecordSession
from dalsegno.testing.memory import MemoryGateway
from openai_world import Asked, Run, attempt, gateway


def said(*texts: str) -> list[Any]:
    return [{"role": "user", "content": text} for text in texts]


def test_each_item_is_a_record_and_the_next_attempt_reads_it(gateway: MemoryGateway) -> None:
    async def write(run: Run) -> None:
        session = RecordSession(run, "a/b c")
        await session.add_items(said("one", "two", "three"))
        assert await session.pop_item() == said("three")[0]
        await RecordSession(run, "other").add_items(said("else"))
        raise Asked

    async def read(run: Run) -> None:
        session = RecordSession(run, "a/b c")
        await session.add_items(said("four"))
        assert await session.get_items() == said("one", "two", "four")

    with pytest.raises(Asked):
        attempt(gateway, write)
    attempt(gateway, read)
    keys = [key for space, key in gateway.rows.records if space == "openai.session" and key.startswith("a")]
    assert keys == ["a%2Fb%20c/000000000000", "a%2Fb%20c/000000000001", "a%2Fb%20c/000000000002"]


def test_two_sessions_of_one_id_are_one_conversation(gateway: MemoryGateway) -> None:
    async def work(run: Run) -> None:
        first, second = RecordSession(run), RecordSession(run)
        await asyncio.gather(*(session.add_items(said(str(n))) for n, session in enumerate([first, second] * 5)))
        assert await first.get_items() == await second.get_items() == said(*map(str, range(10)))
        await second.clear_session()
        assert await first.get_items() == [] and await first.pop_item() is None

    attempt(gateway, work)
    assert not [key for space, key in gateway.rows.records if space == "openai.session"]


def test_a_limit_is_of_the_latest_items(gateway: MemoryGateway) -> None:
    async def work(run: Run) -> None:
        session = RecordSession(run, session_settings={"limit": 2})
        await session.add_items(said("one", "two", "three"))
        assert await session.get_items() == said("two", "three")
        assert await session.get_items(1) == said("three") and await session.get_items(0) == []
        assert await session.get_items(-1) == await session.get_items(9) == said("one", "two", "three")
        assert session.session_settings == SessionSettings(limit=2)

    attempt(gateway, work)


def test_what_is_returned_is_a_copy(gateway: MemoryGateway) -> None:
    async def work(run: Run) -> None:
        session, items = RecordSession(run), said("one")
        await session.add_items(items)
        items[0]["content"] = "changed"
        first: Any = (await session.get_items())[0]
        first["content"] = "changed"
        assert await session.get_items() == said("one")

    attempt(gateway, work)


def test_many_items_and_large_ones_go_in_several_batches(gateway: MemoryGateway) -> None:
    async def work(run: Run) -> None:
        session = RecordSession(run)
        await session.add_items(said(*map(str, range(2_500))))
        await session.add_items(said(*("x" * (3 << 20) for _ in range(4))))
        await RecordSession(run, "ä" * 500).add_items(said("a long name"))
        await session.clear_session()

    attempt(gateway, work)
    # 3 batches of items, 2 of large ones, 1, and 3 that delete.
    assert gateway.requests.count("records") - 2 == 9, "two requests read"
    assert [len(key) <= 512 for space, key in gateway.rows.records if space == "openai.session"] == [True]


def test_a_write_whose_caller_was_cancelled_is_known(gateway: MemoryGateway) -> None:
    async def work(run: Run) -> None:
        session = RecordSession(run)
        task = asyncio.create_task(session.add_items(said("one")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await session.get_items() == said("one")

    attempt(gateway, work)
    assert len([key for space, key in gateway.rows.records if space == "openai.session"]) == 1
