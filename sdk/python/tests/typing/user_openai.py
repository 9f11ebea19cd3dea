"""A user's agent: see user_plain.py."""

from __future__ import annotations

from typing import Any

from agents import Agent, function_tool
from typing_extensions import assert_type

import dalsegno
import dalsegno.aio
from dalsegno.openai import AgentResult, Probe, RecordSession, call_key, guard, run_agent


@function_tool
def pay(bill: str, cents: int) -> str:
    """Pays a bill."""
    return f"{bill}: {cents} under {call_key()}"


def find(bill: str, cents: int, key: str) -> str:
    raise dalsegno.CallFailed("nothing took effect")


async def main() -> None:
    async with await dalsegno.aio.attach() as run:
        clerk = guard(run, Agent[None](name="Clerk", tools=[pay]), pay="retrySameKey")
        assert_type(clerk, Agent[None])
        guard(run, clerk, pay=Probe(find))
        guard(run, clerk, pay="sometimes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        guard(run, "clerk", pay="ask")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        result = await run_agent(run, clerk, "Pay the paper.", session=RecordSession(run, "chat"), expires=3600)
        assert_type(result, AgentResult)
        await run_agent(run, clerk)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        await run_agent(run, clerk, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await run.finish(output=result.final_output)


async def synchronous(run: dalsegno.Run[Any], clerk: Agent[Any]) -> None:
    await run_agent(run, clerk, "Pay.")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
