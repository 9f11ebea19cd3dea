"""The refund desk of deploy/examples/langgraph, with a ledger and a model server that outlive it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from dalsegno.testing.memory import CrashPoint, Ended, MemoryGateway
from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall

AGENT = Path(__file__).parents[5] / "deploy/examples/langgraph/agent.py"

PRICES = {"A-1": 1900, "A-2": 48900}


class Ledger:
    """A ledger that honours keys. `entries` are what it has stored, `attempts` is how often each key came."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}
        self.attempts: dict[str, int] = {}
        self.on_entry: Callable[[], object] = lambda: None
        """Called when an entry is stored, before it is answered."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def notes(self) -> list[Any]:
        """What was paid, in order."""
        return [json.loads(entry["note"]) for entry in self.entries.values()]

    def _handler(ledger) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                entry = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                key = entry["key"]
                assert key, "a call has a key"
                ledger.attempts[key] = ledger.attempts.get(key, 0) + 1
                if key not in ledger.entries:
                    ledger.entries[key] = entry
                    ledger.on_entry()
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def refund_desk(body: dict[str, Any]) -> Reply:
    """The model of the refund desk: it looks an order up, refunds it, and answers."""
    letter = max(at for at, message in enumerate(body["messages"]) if message["role"] == "user")
    found = re.search(r"A-\d+", body["messages"][letter]["content"])
    assert found
    order, said = found[0], body["messages"][letter + 1 :]
    if not said:
        return Reply(tool_calls=[ToolCall("find_order", {"order": order})])
    if len(said) == 2:
        return Reply(tool_calls=[ToolCall("refund", {"order": order, "cents": PRICES[order]})])
    return Reply(f"About {order}: {said[-1]['content']}")


class Desk:
    """One run of the example, with its ledger, its model and its gateway."""

    def __init__(self, *letters: str, **input: Any) -> None:
        self.ledger = Ledger()
        self.model = FakeOpenAI(refund_desk)
        self.gateway = MemoryGateway({"letters": letters, "limitCents": 5000, "ledger": self.ledger.url, **input})

    def __enter__(self) -> Desk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gateway.close()
        self.model.close()
        self.ledger.__exit__(None, None, None)

    def run(self, crash: CrashPoint | None = None, environment: Mapping[str, str] | None = None) -> list[Ended]:
        """Runs the example to its end. Ann approves what it asks."""
        runs: list[Ended] = []
        variables = {**self.model.environment, **(environment or {})}
        while not runs or self.gateway.open_waits:
            for id in self.gateway.open_waits:
                self.gateway.approve(id)
            runs.append(self.gateway.run([AGENT], crash=crash, environment=variables, timeout=300))
        return runs

    @property
    def steps(self) -> list[int]:
        """The step of each turn, in order."""
        return [event["langgraph"]["step"] for event in self.gateway.events]
