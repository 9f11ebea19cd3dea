"""Kill -9 before and after every request of the agent in Rust (`deploy/examples/rust`): each note is written once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conftest import dev_program
from dalsegno.testing.plugin import CrashMatrix


class Ledger(ThreadingHTTPServer):
    """A ledger that honours keys. It has the notes that it was sent, by their keys."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.notes: dict[str, Any] = {}


class _Handler(BaseHTTPRequestHandler):
    server: Ledger

    def do_POST(self) -> None:
        note = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.server.notes.setdefault(note["key"], note)["note"] == note["note"]
        self.send_response(201)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger() as ledger:
        threading.Thread(target=ledger.serve_forever, daemon=True).start()
        yield ledger
        ledger.shutdown()


def test_the_agent_in_rust_writes_each_note_once_wherever_it_is_killed(
    crash_matrix: CrashMatrix, ledger: Ledger
) -> None:
    agent = Path(dev_program()).with_name("agent")
    input = {"goal": "birds", "turns": 2, "turnSeconds": 0, "ledger": f"http://127.0.0.1:{ledger.server_port}"}
    points = 0
    for point, gateway, ended in crash_matrix([agent], input=input, before_each=ledger.notes.clear):
        points += 1
        assert gateway.finish is not None and gateway.finish["output"] == {"notes": 2}, (point, ended.output)
        assert sorted(note["turn"] for note in ledger.notes.values()) == [1, 2], point
        assert len(gateway.state["notes"]) == 2, point
        assert len(gateway.events) == 2, point
        plans = [call for call in gateway.calls if ".plan." in call.id]
        assert [call.state for call in plans] == ["completed", "completed"], point
    assert points == 1 + 2 * 11, "attach, and two turns of five requests"
