"""LangGraph's own benchmark of delta channels, with its PostgreSQL saver and with `RecordSaver`, on one PostgreSQL server.

The benchmark is the vendor's `tests/test_delta_channel_benchmark.py`, unchanged: the argument names it. Its scenarios, its
graphs, its measurements and its way to count bytes are used. `RecordSaver` writes to a real gateway, over HTTP, with the
checks of every worker: each measurement has a run of its own. The savers take turns, so that a noisy machine disturbs both
alike.

`with-control-plane.sh` starts it: hack/bench.sh langgraph.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from types import ModuleType
from typing import Any

import psycopg
from dalsegno.langgraph import RecordSaver
from services import NAMESPACE, dalsegno_on, kubectl, postgres, stored_bytes, worker

COLUMNS = (
    "channels",
    "turns",
    "write, LangGraph",
    "ours",
    "ratio",
    "read, LangGraph",
    "ours",
    "ours, first",
    "stored, LangGraph",
    "ours",
    "ratio",
)


def load(file: str, database: str) -> ModuleType:
    """The vendor's benchmark as a module, which connects to this database."""
    os.environ["LANGGRAPH_BENCH_POSTGRES_URI"] = database
    spec = importlib.util.spec_from_file_location("vendor_benchmark", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def theirs(vendor: ModuleType, frequencies: list[int], turns: int, name: str) -> dict[str, Any]:
    """One measurement with LangGraph's PostgreSQL saver."""
    with vendor._pg_saver(name) as saver:
        measured: dict[str, Any] = vendor._run_scenario(frequencies, turns, saver, name)
        return measured


def ours(vendor: ModuleType, frequencies: list[int], turns: int, name: str) -> dict[str, Any]:
    """The same with `RecordSaver`, on the run's own thread. `first_read_ms` is the first read of a saver that knows nothing."""
    with worker(name) as run:
        saver = RecordSaver(run)
        measured: dict[str, Any] = vendor._run_scenario(frequencies, turns, saver, saver.thread_id)
        assert run.head is not None and run.head.turn >= turns, "each checkpoint is a turn"
        graph = vendor._make_graph(vendor._make_state_cls(frequencies), len(frequencies), RecordSaver(run))
        began = time.perf_counter()
        state = graph.get_state({"configurable": {"thread_id": saver.thread_id}})
        measured["first_read_ms"] = (time.perf_counter() - began) * 1000
        assert {len(values) for values in state.values.values()} == {turns}, "every message is read back"
        measured["thread"] = saver.thread_id
        return measured


def row(vendor: ModuleType, label: str, turns: int, measured: dict[str, dict[str, Any]]) -> list[str]:
    """A row of the table."""
    saver, record = measured["theirs"], measured["ours"]
    bytes_ratio = record["storage_bytes"] / saver["storage_bytes"]
    return [
        label,
        str(turns),
        f"{saver['write_per_invoke_ms']:.1f} ms",
        f"{record['write_per_invoke_ms']:.1f} ms",
        f"{record['write_per_invoke_ms'] / saver['write_per_invoke_ms']:.2f}×",
        f"{saver['read_avg_ms']:.1f} ms",
        f"{record['read_avg_ms']:.1f} ms",
        f"{record['first_read_ms']:.0f} ms",
        vendor._fmt_bytes(saver["storage_bytes"]),
        vendor._fmt_bytes(record["storage_bytes"]),
        f"{bytes_ratio:.2f}×",
    ]


def main(file: str) -> None:
    with postgres() as server:
        for name in ("langgraph", "dalsegno"):
            with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}".encode())
        vendor = load(file, f"{server}/langgraph")
        with dalsegno_on(f"{server}/dalsegno"):
            kubectl("create", "namespace", NAMESPACE)
            print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
            cases = [(*scenario, turns) for scenario in vendor.SCENARIOS for turns in vendor.TURN_COUNTS]
            for number, (label, frequencies, turns) in enumerate(cases):
                measured = {}
                for measure in (theirs, ours) if number % 2 == 0 else (ours, theirs):
                    measured[measure.__name__] = measure(vendor, frequencies, turns, f"case-{number}")
                measured["ours"]["storage_bytes"] = stored_bytes(f"{server}/dalsegno", measured["ours"]["thread"])
                print("| " + " | ".join(row(vendor, label, turns, measured)) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
