"""Agents as processes: kill -9 at each kind of request of the example, two attempts at once, and `dalsegno dev`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from dalsegno.testing.memory import CrashPoint, Ended, MemoryGateway
from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall
from kills import survive_kills

AGENTS = Path(__file__).parent / "agents"
SOURCES = Path(__file__).parents[3] / "src"
EXAMPLE = Path(__file__).parents[5] / "deploy" / "examples" / "pydantic_ai" / "agent.py"
ORDER = {"item": "nails", "cents": 500}
SCRIPT = [
    Reply(tool_calls=[ToolCall("find_supplier", {"item": "nails"})]),
    Reply(tool_calls=[ToolCall("pay", {"supplier": "Bird & Sons", "cents": 500})]),
    Reply("I bought nails."),
]

SECONDS = 240
"""How long a process may take: importing Pydantic AI takes a second of a free processor, and much longer on a busy one."""

needs_example = pytest.mark.skipif(not EXAMPLE.exists(), reason="the package is tested outside of its repository")


class Ledger:
    """A bank: it honours the key."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        ledger = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                entry = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                ledger.entries.setdefault(entry["key"], entry)
                self.send_response(201)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger()
    yield ledger
    ledger.server.shutdown()
    ledger.server.server_close()


def run_example(gateway: MemoryGateway, model: FakeOpenAI, crash: CrashPoint | None) -> Ended:
    """Runs the example until it has ended; ann approves."""
    ended = gateway.run([EXAMPLE], environment=model.environment, crash=crash, timeout=SECONDS)
    while gateway.open_waits:
        gateway.approve(gateway.open_waits[0])
        left = crash if crash is not None and crash.request >= len(gateway.requests) else None
        ended = gateway.run([EXAMPLE], environment=model.environment, crash=left, timeout=SECONDS)
    return ended


@pytest.mark.slow
@needs_example
def test_the_example_is_killed_at_each_kind_of_request(ledger: Ledger) -> None:
    order = {**ORDER, "ledger": ledger.url}
    with MemoryGateway(order) as gateway, FakeOpenAI(SCRIPT) as model:
        ended = run_example(gateway, model, None)
        assert gateway.finish and gateway.finish["message"] == "I bought nails.", ended.output
        kinds = {name: number for number, name in reversed(list(enumerate(gateway.requests)))}
        records = {key for _, key in gateway.rows.records}
    assert {"attach", "calls/*/claim", "calls/*/complete", "waits/*", "park", "records", "turns/1"} == set(kinds)
    assert len(ledger.entries) == 1 and len(model.requests) == 3 and len(records) == 7
    last_complete = len(gateway.requests) - 1 - gateway.requests[::-1].index("calls/*/complete")
    points = [*(CrashPoint(number, "after") for number in kinds.values()), CrashPoint(last_complete - 2, "before")]
    for point in points:
        ledger.entries.clear()
        with MemoryGateway(order) as gateway, FakeOpenAI(SCRIPT) as model:
            ended = run_example(gateway, model, point)
            name = gateway.requests[point.request]
            assert gateway.finish and gateway.finish["message"] == "I bought nails.", (point, name, ended.output)
            assert [entry["note"] for entry in ledger.entries.values()] == [
                '{"supplier": "Bird & Sons", "cents": 500}'
            ], (point, name)
            assert gateway.rows.head and gateway.rows.head["turn"] == 1, (point, name)
            assert len({key for _, key in gateway.rows.records}) == 7, (point, name)
            assert len(model.requests) <= 4, (point, name)


def buyer_environment(directory: Path, model: FakeOpenAI) -> dict[str, str]:
    (directory / "ledger").touch()
    return {**model.environment, "LEDGER": str(directory / "ledger"), "LOG": str(directory / "log")}


BUYER = [
    Reply(tool_calls=[ToolCall("search", {"item": "nails"})]),
    Reply(tool_calls=[ToolCall("pay", {"order": "nails", "cents": 500})]),
    Reply("Bought the nails."),
]


def test_kill_in_the_second_tool_asks_the_model_nothing_again(tmp_path: Path) -> None:
    with MemoryGateway() as gateway, FakeOpenAI(BUYER) as model:
        environment = {**buyer_environment(tmp_path, model), "DIE_IN_PAY": "1"}
        ended = gateway.run([AGENTS / "buyer.py"], environment=environment, timeout=SECONDS)
        assert ended.exit_codes == [-9, 0], ended.output
        assert gateway.finish is not None and gateway.finish["output"] == {"answer": "Bought the nails."}
        assert len(model.requests) == 3
        assert (tmp_path / "log").read_text().splitlines() == ["search nails", "pay nails", "pay nails"]
        assert len((tmp_path / "ledger").read_text().splitlines()) == 1


def test_of_two_attempts_at_once_the_older_one_writes_nothing(tmp_path: Path) -> None:
    with MemoryGateway() as gateway, FakeOpenAI(BUYER) as model:
        environment = {**buyer_environment(tmp_path, model), "HOLD": str(tmp_path / "go")}
        gateway.start_attempt()
        old = subprocess.Popen(
            [sys.executable, AGENTS / "buyer.py"],
            env={**os.environ, "PYTHONPATH": str(SOURCES), **environment, **gateway.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            await_line(tmp_path / "log", "pay nails")
            ended = gateway.run([AGENTS / "buyer.py"], environment=environment, timeout=SECONDS)
            assert ended.exit_codes == [0], ended.output
            before = (gateway.rows.head, gateway.finish, [(call.id, call.state, call.result) for call in gateway.calls])
            requests = len(gateway.requests)
            (tmp_path / "go").touch()
            output = old.communicate(timeout=SECONDS)[0]
        finally:
            old.kill()
        assert gateway.requests[requests:] == ["calls/*/complete"], "the older attempt tried to write, and then ended"
        assert old.returncode != 0, output
        after = (gateway.rows.head, gateway.finish, [(call.id, call.state, call.result) for call in gateway.calls])
        assert after == before and len(model.requests) == 3
        assert len((tmp_path / "ledger").read_text().splitlines()) == 1


def await_line(file: Path, line: str) -> None:
    end = time.monotonic() + SECONDS
    while not file.exists() or line not in file.read_text().splitlines():
        assert time.monotonic() < end, f"no {line!r} in {file}"
        time.sleep(0.05)


@needs_example
def test_the_example_survives_kills_and_a_person_under_dalsegno_dev(tmp_path: Path, ledger: Ledger) -> None:
    order = {**ORDER, "ledger": ledger.url, "toolSeconds": 3}
    with FakeOpenAI(SCRIPT) as model:
        run = survive_kills(EXAMPLE, tmp_path, order, model.environment, r"1\.pay\.")
        assert run.kills > 0 and run.approved == 1, run.output
        assert [entry["note"] for entry in ledger.entries.values()] == ['{"supplier": "Bird & Sons", "cents": 500}']
        # The model is asked again only by a process that was killed while it waited for the model.
        assert len(model.requests) <= run.asked_at_most(3)


@needs_example
def test_a_parked_process_ends_although_a_tool_ran_in_a_thread(ledger: Ledger) -> None:
    order = {**ORDER, "ledger": ledger.url}
    with MemoryGateway(order) as gateway, FakeOpenAI(SCRIPT) as model:
        ended = gateway.run([EXAMPLE], environment=model.environment, timeout=SECONDS)
        assert ended.exit_codes == [0] and gateway.open_waits and not ledger.entries, ended.output

