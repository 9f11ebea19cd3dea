"""Against a real gateway, that of `dalsegno dev` on SQLite: conformance, a second attempt, and the example under kills."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance")

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES

import dalsegno
from conftest import dev_program
from contract_gateways import DevWorker
from dalsegno import Refused
from dalsegno.langgraph import RecordSaver
from dalsegno.testing.models import FakeOpenAI
from kills import survive_kills
from langgraph_attempts import OldWorker
from langgraph_support import AGENT, Ledger, refund_desk


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[DevWorker]:
    worker = DevWorker(dev_program(), tmp_path)
    yield worker
    worker.close()


def attach(worker: DevWorker, environment: pytest.MonkeyPatch) -> OldWorker:
    """This process as the worker of the current pod."""
    for name, text in (("token", worker.token), ("input", "")):
        file = worker.directory / name
        file.write_text(text)
        environment.setenv(f"DALSEGNO_{name.upper()}_FILE", str(file))
    environment.setenv("DALSEGNO_URL", worker.url)
    return OldWorker.attach(heartbeat=False, sigterm=False)


def test_the_saver_conforms_at_a_real_gateway(worker: DevWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    run = attach(worker, monkeypatch)

    @checkpointer_test(name="records")
    async def saver() -> Any:
        yield RecordSaver(run)

    results = asyncio.run(validate(saver)).results
    assert {name: result.failures for name, result in results.items() if not result.passed} == {}
    assert {*results} == {capability.value for capability in ALL_CAPABILITIES}
    assert sum(result.tests_passed for result in results.values()) == 81


def test_every_write_of_the_attempt_before_is_refused(worker: DevWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    old = RecordSaver(attach(worker, monkeypatch))
    config: RunnableConfig = {"configurable": {"thread_id": old.thread_id, "checkpoint_ns": ""}}
    other: RunnableConfig = {"configurable": {"thread_id": "other", "checkpoint_ns": ""}}
    first = empty_checkpoint()
    stored = old.put(config, first, {"step": 1, "source": "loop"}, {})
    worker.next_attempt()
    new = RecordSaver(attach(worker, monkeypatch))
    for write in (
        lambda: old.put(stored, empty_checkpoint(), {"step": 2, "source": "loop"}, {}),
        lambda: old.put(other, empty_checkpoint(), {"step": 2, "source": "loop"}, {}),
        lambda: old.put_writes(stored, [("channel", 1)], "task"),
        lambda: old.delete_thread(old.thread_id),
        lambda: old.session.io.run.call("c", policy="ask", tool=lambda key, arguments: pytest.fail("it ran")),
    ):
        with pytest.raises(Refused) as refused:
            write()
        assert refused.value.code == "FENCED"
    found = new.get_tuple(config)
    assert found and found.checkpoint["id"] == first["id"] and found.pending_writes == []
    assert new.session.io.run.next_turn == 2


def test_long_values_are_stored_at_a_real_gateway(worker: DevWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "x" * (7 << 20)
    saver = RecordSaver(attach(worker, monkeypatch))
    config: RunnableConfig = {"configurable": {"thread_id": saver.thread_id, "checkpoint_ns": ""}}
    versions = {name: saver.get_next_version(None, None) for name in ("long", "half", "other half")}
    values = {"long": long, "half": long[: 2 << 20], "other half": long[: 2 << 20]}
    made = {**empty_checkpoint(), "channel_values": values, "channel_versions": versions}
    stored = saver.put(config, made, {"step": 1, "source": "loop"}, versions)
    saver.put_writes(stored, [("long", long)], "task")
    worker.next_attempt()
    found = RecordSaver(attach(worker, monkeypatch)).get_tuple(config)
    assert found and found.checkpoint["channel_values"] == values and found.pending_writes == [("task", "long", long)]


def test_the_example_ends_under_kills_with_each_refund_paid_once(tmp_path: Path) -> None:
    pytest.importorskip("langchain_openai")
    letters = ["My order A-1 never came.", "The scope of A-2 is broken."]
    with Ledger() as ledger, FakeOpenAI(refund_desk) as model:
        input = {"letters": letters, "limitCents": 5000, "ledger": ledger.url, "pauseSeconds": 1.5}
        run = survive_kills(AGENT, tmp_path, input, model.environment, "lg:")
        assert run.kills > 0 and run.approved == 1, run.output
        assert ledger.notes == [{"order": "A-1", "cents": 1900}, {"order": "A-2", "cents": 48900}]
        assert "About A-2: refunded 48900 cents of A-2" in run.output
        assert len(model.requests) <= run.asked_at_most(6)
