"""What the tests of `dalsegno.openai` share: a bank that honours keys, attempts in this process, and the example."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dalsegno.aio
from dalsegno.aio import AsyncRun
from dalsegno.testing.memory import MemoryGateway

EXAMPLE = Path(__file__).parents[5] / "deploy" / "examples" / "openai" / "agent.py"

SOURCE = Path(dalsegno.__file__).parents[1]

Work = Callable[[AsyncRun[Any]], Awaitable[Any]]


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
