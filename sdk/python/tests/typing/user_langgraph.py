"""A user's graph: see user_plain.py."""

# LangGraph is not marked as typed, and what its builder takes is not known to the last.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import dalsegno
import dalsegno.aio
from dalsegno.langgraph import Key, RecordSaver, arun_graph, guard, run_graph


def refund(order: str, cents: int, key: Key = "") -> str:
    """Refunds."""
    return f"{order}: {cents} under {key}"


def found(order: str, cents: int) -> str:
    raise dalsegno.CallFailed("nothing took effect")


def think(state: MessagesState) -> dict[str, Any]:
    return {"messages": state["messages"]}


def build(run: dalsegno.Run[Any]) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("tools", ToolNode([refund], wrap_tool_call=guard(run, refund="retrySameKey")))
    builder.add_edge(START, "think")
    guard(run, refund=found)
    guard(run, refund="sometimes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    guard("run", refund="ask")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RecordSaver("run")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return builder.compile(checkpointer=RecordSaver(run))


def main() -> None:
    with dalsegno.attach() as run:
        result = run_graph(run, build(run), {"messages": []}, ask=lambda it: {"title": str(it.value)})
        run_graph(run, build(run))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        run.finish(output=result)


async def asynchronous() -> None:
    async with await dalsegno.aio.attach() as run:
        graph = ToolNode([refund], wrap_tool_call=guard(run, refund="ask"), awrap_tool_call=guard(run, refund="ask"))
        await arun_graph(run, graph, {"messages": []})
        run_graph(run, graph, {})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await run.finish()
