"""Attempts of a graph in this process, at a gateway in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import dalsegno
from dalsegno import Refused, Run
from dalsegno._wire import Refusal
from dalsegno.langgraph import RecordSaver
from dalsegno.testing.memory import MemoryGateway


class Attempts:
    """The attempts of one run, one after the other, in this process."""

    def __init__(self, gateway: MemoryGateway, environment: pytest.MonkeyPatch) -> None:
        self.gateway, self._environment = gateway, environment

    @contextmanager
    def attempt(self) -> Iterator[Run[Any]]:
        """The next attempt. A `Leave` ends it like a process that has left; other exceptions pass."""
        self.gateway.start_attempt()
        for name, value in self.gateway.environment.items():
            self._environment.setenv(name, value)
        try:
            with dalsegno.attach(heartbeat=False, sigterm=False) as run:
                yield run
                if self.gateway.finish is None:
                    raise Crash
        except Crash:
            pass
        finally:
            self.gateway.end_attempt()


class Crash(BaseException):
    """What ends an attempt without a finish, as a kill does. No handler of a framework may catch it."""


class OldWorker(Run[Any]):
    """A worker that raises `Refused` where a fence would end its process."""

    def _on_refusal(self, name: str, refusal: Refusal) -> None:
        raise Refused(refusal.code, refusal.detail)


def agent(run: Any, tools: Sequence[Any], replies: Sequence[AIMessage], **options: Any) -> Any:
    """An agent whose model says the replies, in order; each reply with calls of tools is followed by these."""

    def think(state: MessagesState) -> Any:
        said = sum(isinstance(message, AIMessage) for message in state["messages"])
        return {"messages": [replies[said]]}

    def after(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", after, ["tools", END])
    graph.add_edge("tools", "think")
    return graph.compile(checkpointer=RecordSaver(run))


def call(name: str, id: str = "c1", **arguments: Any) -> AIMessage:
    """A reply of the model that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": id}])


def told(state: Any) -> list[str]:
    """What the tools have said to the model."""
    return [message.text for message in state["messages"] if isinstance(message, ToolMessage)]
