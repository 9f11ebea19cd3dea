"""Two processes on one thread: the first was thought dead, and goes on when the second has done its work.

LangGraph's savers accept what both write. `RecordSaver` accepts nothing more of the first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from operator import add
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("langgraph")

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from contract_gateways import ContractGateway
from dalsegno import Refused
from dalsegno.langgraph import RecordSaver
from dalsegno.testing.memory import MemoryGateway
from dalsegno.testing.models import FakeOpenAI
from langgraph_attempts import OldWorker
from langgraph_support import AGENT, Ledger, refund_desk

SECONDS = 300


class State(TypedDict):
    log: Annotated[list[str], add]


def graph(saver: BaseCheckpointSaver[Any], name: str, meanwhile: Callable[[], object] = lambda: None) -> Any:
    """A graph of one step, which adds this name to the log. `meanwhile` is called in the step."""

    def work(state: State) -> State:
        meanwhile()
        return {"log": [name]}

    built = StateGraph(State)
    built.add_node("work", work)
    built.add_edge(START, "work")
    built.add_edge("work", END)
    return built.compile(checkpointer=saver)


def steps(graph: Any, config: Any) -> list[tuple[int, list[str]]]:
    """The checkpoints of a thread, from the oldest: the step of each, and the log in it."""
    return [(it.metadata["step"], it.values.get("log", [])) for it in reversed([*graph.get_state_history(config)])]


def race(first: BaseCheckpointSaver[Any], second: Callable[[], BaseCheckpointSaver[Any]], config: Any) -> Any:
    """The second process goes on with the thread while the first one is in its step, and ends. Then the first goes on."""
    others: list[Any] = []

    def take_over() -> None:
        others.append(graph(second(), "second"))
        others[0].invoke(None, config, durability="sync")

    try:
        graph(first, "first", take_over).invoke({"log": []}, config, durability="sync")
    finally:
        assert others[0].get_state(config).next == (), "the second process has ended the graph"
    return others[0]


@pytest.fixture(params=["sqlite", "postgres"])
def vendor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], BaseCheckpointSaver[Any]]]:
    """Opens a saver of LangGraph; each is one of its own, in one database."""
    if request.param == "sqlite":
        sqlite = pytest.importorskip("langgraph.checkpoint.sqlite")
        import sqlite3

        yield lambda: sqlite.SqliteSaver(sqlite3.connect(tmp_path / "db", check_same_thread=False))
        return
    saver = pytest.importorskip("langgraph.checkpoint.postgres").PostgresSaver
    from langgraph_postgres import postgres, programs
    from psycopg import connect
    from psycopg.rows import dict_row

    folder = programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres(folder) as url:

        def opened() -> BaseCheckpointSaver[Any]:
            made = saver(connect(f"{url}/postgres", autocommit=True, prepare_threshold=0, row_factory=dict_row))
            made.setup()
            theirs: BaseCheckpointSaver[Any] = made
            return theirs

        yield opened


def test_savers_of_langgraph_accept_both_writers(vendor: Callable[[], BaseCheckpointSaver[Any]]) -> None:
    config = {"configurable": {"thread_id": "t"}}
    last = race(vendor(), vendor, config)
    assert steps(last, config) == [(-1, []), (0, []), (1, ["second"]), (1, ["first"])], "one step, two results"
    assert last.get_state(config).values == {"log": ["first"]}, "the work of the second is lost"


def test_of_two_writers_the_first_one_is_refused(
    contract: ContractGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attach() -> RecordSaver:
        for name, text in (("token", contract.token), ("input", "")):
            (tmp_path / name).write_text(text)
            monkeypatch.setenv(f"DALSEGNO_{name.upper()}_FILE", str(tmp_path / name))
        monkeypatch.setenv("DALSEGNO_URL", contract.url)
        return RecordSaver(OldWorker.attach(heartbeat=False, sigterm=False))

    def next_attempt() -> RecordSaver:
        contract.next_attempt()
        return attach()

    first = attach()
    config = {"configurable": {"thread_id": first.thread_id}}
    with pytest.raises(Refused) as refused:
        race(first, next_attempt, config)
    assert refused.value.code == "FENCED"
    contract.next_attempt()
    third = graph(attach(), "third")
    assert steps(third, config) == [(-1, []), (0, []), (1, ["second"])]
    assert third.get_state(config).values == {"log": ["second"]}


class Freeze:
    """Freezes a process in its first payment, between the effect and its answer."""

    def __init__(self, ledger: Ledger) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.frozen = threading.Event()
        self._ledger = ledger
        ledger.on_entry = self._on_entry

    def _on_entry(self) -> None:
        self._ledger.on_entry = lambda: None
        assert self.process
        os.kill(self.process.pid, signal.SIGSTOP)
        self.frozen.set()


def test_a_frozen_process_that_goes_on_after_the_next_attempt_writes_nothing() -> None:
    """The example, with two processes at once: the first is frozen in its tool, the second ends the run."""
    pytest.importorskip("langchain_openai")
    with (
        Ledger() as ledger,
        FakeOpenAI(refund_desk) as model,
        MemoryGateway({"letters": ["My order A-1 never came."], "limitCents": 5000, "ledger": ledger.url}) as gateway,
    ):
        freeze = Freeze(ledger)
        gateway.start_attempt()
        path = os.pathsep.join(it for it in sys.path if it)
        old = freeze.process = subprocess.Popen(
            [sys.executable, str(AGENT)],
            env={**os.environ, **model.environment, **gateway.environment, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert freeze.frozen.wait(SECONDS), "the first process pays"
            ended = gateway.run([AGENT], environment=model.environment, timeout=SECONDS)
            assert ended.exit_codes == [0] and gateway.finish, ended.output
            rows = str((gateway.rows.head, gateway.finish, gateway.rows.records, gateway.calls, gateway.events))
            asked, requests = len(model.requests), len(gateway.requests)
            os.kill(old.pid, signal.SIGCONT)
            output = old.communicate(timeout=SECONDS)[0]
        finally:
            old.kill()
        assert old.returncode == 1 and "dalsegno: FENCED" in output, output
        assert len(gateway.requests) > requests, "it has tried to write"
        assert str((gateway.rows.head, gateway.finish, gateway.rows.records, gateway.calls, gateway.events)) == rows
        assert len(model.requests) == asked
        assert ledger.notes == [{"order": "A-1", "cents": 1900}]
