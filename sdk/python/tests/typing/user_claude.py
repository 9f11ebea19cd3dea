"""A user's session: see user_plain.py."""

from __future__ import annotations

from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, Message, tool
from typing_extensions import assert_type

import dalsegno
import dalsegno.aio
from dalsegno.claude import RecordSessionStore, Session, call_key


@tool("pay", "Pays an order.", {"order": str, "cents": int})
async def pay(args: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": call_key()}]}


async def main() -> None:
    async with await dalsegno.aio.attach() as run:
        options = ClaudeAgentOptions(model="claude-sonnet-4-5", tools=[])
        session = Session(
            run, options, tools={"bank": [pay]}, policies={"mcp__bank__pay": "retrySameKey"}, approve=["mcp__bank__pay"]
        )
        async for message in session.run("Pay."):
            assert_type(message, Message)
        assert_type(session.result, str)
        await run.finish(message=session.result[:250])
        ClaudeAgentOptions(session_store=RecordSessionStore(run))
        Session(run, options, policies={"pay": "sometimes"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
        Session(run, options, tools=[pay])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        Session(run)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def synchronous(run: dalsegno.Run[Any]) -> None:
    Session(run, ClaudeAgentOptions())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RecordSessionStore("run")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
