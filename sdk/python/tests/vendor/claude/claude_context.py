"""What the tests of `dalsegno.claude` share: a ledger that honours keys, attempts in this process, and the example."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dalsegno.aio
from claude_agent_sdk import ClaudeAgentOptions, tool
from dalsegno.aio import AsyncRun
from dalsegno.claude import Session, call_key
from dalsegno.testing.memory import MemoryGateway
from dalsegno.testing.models import FakeAnthropic, Reply, ToolCall

EXAMPLE = Path(__file__).parents[5] / "deploy" / "examples" / "claude"
sys.path.insert(0, str(EXAMPLE))

PAY = "mcp__bank__pay"
LOOK = "mcp__bank__look"


class Ledger:
    """An HTTP server that books each key once, as the example's ledger does."""

    def __init__(self) -> None:
        self.booked: dict[str, str] = {}
        """The note of each payment, by its key."""
        self.posts = 0
        """How many requests came."""
        self.on_booked: Callable[[], object] = lambda: None
        """Called when a payment is booked, before the answer is sent."""
        ledger = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                entry = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                ledger.posts += 1
                if entry["key"] not in ledger.booked:
                    ledger.booked[entry["key"]] = entry["note"]
                    ledger.on_booked()
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


class Bank:
    """The tools of an agent in this process. Each payment is in `paid`: its key and its cents."""

    def __init__(self) -> None:
        self.paid: list[tuple[str, int]] = []
        self.looked = 0
        self.before_paying: Callable[[dict[str, Any]], Awaitable[None] | None] = lambda _: None
        """Called by the tool before it pays. What it raises, the tool raises."""

        @tool("pay", "Pays.", {"cents": int})
        async def pay(args: dict[str, Any]) -> dict[str, Any]:
            waiting = self.before_paying(args)
            if waiting is not None:
                await waiting
            self.paid.append((call_key(), args["cents"]))
            return {"content": [{"type": "text", "text": f"paid {args['cents']}"}]}

        @tool("look", "Looks at the balance.", {})
        async def look(args: dict[str, Any]) -> dict[str, Any]:
            self.looked += 1
            return {"content": [{"type": "text", "text": "9000 cents"}]}

        self.tools: dict[str, Sequence[Any]] = {"bank": [pay, look]}

    @property
    def cents(self) -> list[int]:
        """What was paid, each key once."""
        return list(dict(self.paid).values())


def options(model: FakeAnthropic, **more: Any) -> ClaudeAgentOptions:
    """Options of an agent that asks the fake model and uses no tools of the CLI."""
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", **model.environment, **more.pop("env", {})}
    base: dict[str, Any] = {"model": "claude-sonnet-4-5", "tools": [], "setting_sources": [], "system_prompt": "You pay."}
    return ClaudeAgentOptions(**{**base, "env": quiet, **more})


def session(run: AsyncRun[Any], model: FakeAnthropic, bank: Bank, **more: Any) -> Session:
    """A session with the tools of the bank."""
    policies = {PAY: "retrySameKey", LOOK: "readOnly", **more.pop("policies", {})}
    given = options(model, **more.pop("options", {}))
    return Session(run, given, tools=bank.tools, policies=policies, **more)


def attempt(gateway: MemoryGateway, work: Callable[[AsyncRun[Any]], Awaitable[Any]], sigterm: bool = False) -> Any:
    """Runs one attempt in this process. Returns what the work returns, or the `Leave` or error with which it ends."""

    async def main() -> Any:
        async with await dalsegno.aio.attach(heartbeat=False, sigterm=sigterm) as run:
            return await work(run)

    gateway.start_attempt()
    os.environ.update(gateway.environment)
    try:
        return asyncio.run(main())
    except (dalsegno.Leave, Exception) as error:
        return error
    finally:
        gateway.end_attempt()


async def answer(run: AsyncRun[Any], of: Session, prompt: str = "Pay 5 cents.") -> str:
    """Sends a prompt, ends the run, and returns the answer."""
    async for _ in of.run(prompt):
        pass
    await run.finish()
    return of.result


def pays(*cents: int, text: str = "I pay.") -> Reply:
    """A reply that asks for payments."""
    return Reply(text, tool_calls=[ToolCall(PAY, {"cents": each}) for each in cents])


def results(model: FakeAnthropic) -> dict[str, str]:
    """The results of tool calls that the last request shows to the model, by the ids of the calls."""
    found = {}
    for message in model.requests[-1]["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "tool_result":
                content = block["content"]
                text = content if isinstance(content, str) else content[0]["text"]
                found[block["tool_use_id"]] = text.partition("<system-reminder>")[0].strip()
    return found
