"""What the tests of `dalsegno.openai` share: a bank that honours keys, attempts in this process, and the example."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from agents.testing import ScriptedModel, assistant_message, function_call

import dalsegno.aio
from dalsegno.aio import AsyncRun
from dalsegno.testing.memory import MemoryGateway

EXAMPLE = Path(__file__).parents[5] / "deploy" / "examples" / "openai" / "agent.py"

SOURCE = Path(dalsegno.__file__).parents[1]

Run = AsyncRun[Any]

Work = Callable[[Run], Awaitable[Any]]


class Bank:
    """An HTTP server that books each key once, as the example's ledger does."""

    def __init__(self) -> None:
        self.booked: dict[str, str] = {}
        """The note of each payment, by its key."""
        self.posts = 0
        """How many requests came."""
        self.on_booked: Callable[[], object] = lambda: None
        """Called when a payment is booked, before the answer is sent."""
        bank = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                entry = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                bank.posts += 1
                if bank.booked.setdefault(entry["key"], entry["note"]) == entry["note"]:
                    bank.on_booked()
                self.send_response(201)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    def close(self) -> None:
        """Stops to serve."""
        self._server.shutdown()
        self._server.server_close()


def attempt(gateway: MemoryGateway, work: Work) -> Any:
    """The next attempt of the run, in this process: attaches, awaits `work(run)`, and finishes the run if `work`
    has not; returns what `work` returns."""
    gateway.end_attempt()
    gateway.start_attempt()
    os.environ.update(gateway.environment)

    async def main() -> Any:
        run: AsyncRun[Any]
        async with await dalsegno.aio.attach(heartbeat=False, sigterm=False) as run:
            result = await work(run)
            if not run.sync._lease.ended:
                await run.finish()
            return result

    return asyncio.run(main())


class Asked(Exception):
    """What a test raises in a tool instead of dying there."""


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryGateway]:
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    with MemoryGateway() as gateway:
        for name, value in gateway.environment.items():
            monkeypatch.setenv(name, value)
        yield gateway


def says(text: str = "done") -> list[Any]:
    return [assistant_message(text)]


def calls(*names: str, turn: int = 1, **arguments: Any) -> list[Any]:
    """The model calls tools. The vendor runs no call again whose id was used, so ids differ between turns."""
    return [function_call(name, arguments, call_id=f"c{turn}-{number}") for number, name in enumerate(names)]


def read(model: ScriptedModel, number: int = -1) -> list[Any]:
    """The conversation of one of the questions to the model, as `(who or what, text)`."""
    items: Any = model.calls[number].input
    if isinstance(items, str):
        return [("user", items)]
    return [(it.get("role") or it["type"], it.get("content") or it.get("output") or it.get("name")) for it in items]
