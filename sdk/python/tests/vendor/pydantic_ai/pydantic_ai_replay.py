"""Runs an agent in this process, one attempt after the other, with a crash at any request to the gateway.

A crash is an exception that nothing catches. After it nothing reaches the gateway any more, as after kill -9: the real one
is tested by processes in test_pydantic_ai_process.py. This one is cheap, so it is tried at each request of each agent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

import dalsegno
import dalsegno.aio
from dalsegno._transport import Transport
from dalsegno.aio import AsyncRun
from dalsegno.pydantic_ai import call_key
from dalsegno.testing.memory import MemoryGateway


class Crash(BaseException):
    """The process is dead."""


@dataclass
class World:
    """What lies outside of the process: the bank, and what was asked of the model and of tools."""

    payments: dict[str, Any] = field(default_factory=dict)
    """By key: the bank honours it."""
    asked: list[str] = field(default_factory=list)
    """By whom the model was asked."""
    tool_runs: list[str] = field(default_factory=list)

    def pay(self, what: Any) -> str:
        """A payment under the key of the call in which this is called."""
        self.tool_runs.append(f"pay {what}")
        self.payments.setdefault(call_key(), what)
        return f"paid {what}"

    def model(self, name: str, *script: str | list[ToolCallPart]) -> FunctionModel:
        """A model that says the texts and makes the calls of the script, by how often it has spoken."""

        def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            self.asked.append(name)
            says = script[sum(isinstance(message, ModelResponse) for message in messages)]
            parts = [TextPart(says)] if isinstance(says, str) else list(says)
            return ModelResponse(parts=parts, usage=RequestUsage(input_tokens=10, output_tokens=5))

        return FunctionModel(answer, model_name=name)


def call(tool: str, id: str = "", **arguments: Any) -> ToolCallPart:
    """A call of a tool that the model asks for."""
    return ToolCallPart(tool, arguments, tool_call_id=id or f"id_{tool}")


def new_gateway(input: Any = None) -> MemoryGateway:
    """A gateway whose run has the same id in each test, so that the ids of its calls are the same too."""
    gateway = MemoryGateway(input)
    gateway._run_id = "2f9a3d51-6a4e-4c58-9d0e-0f3b7f3c9a10"
    return gateway


Agent = Callable[[AsyncRun[dict[str, Any]]], Awaitable[None]]


@contextmanager
def requests(sent: list[str], crash: tuple[int, str] | None) -> Iterator[None]:
    """Notes the requests of this process in `sent`, and crashes before or after one of them is carried out."""
    send = Transport.send
    dead = False

    def counted(self: Transport, name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal dead
        if dead or crash == (len(sent), "before"):
            dead = True
            raise Crash(name)
        sent.append(name)
        answer = send(self, name, *args, **kwargs)
        if crash == (len(sent) - 1, "after"):
            dead = True
            raise Crash(name)
        return answer

    Transport.send = counted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Transport.send = send  # type: ignore[method-assign]


def attempt(gateway: MemoryGateway, agent: Agent) -> None:
    """One attempt of an agent, as a process of its own would make it.

    Errors: whatever ends the agent, as `Crash` and `dalsegno.Parked`.
    """
    gateway.start_attempt()
    os.environ.update(gateway.environment)

    runs: list[AsyncRun[dict[str, Any]]] = []

    async def main() -> None:
        async with await dalsegno.aio.attach(dict, heartbeat=False, sigterm=False) as run:
            runs.append(run)
            await agent(run)

    try:
        asyncio.run(main())
    finally:
        # What a dead process has queued is never sent. A request that outlived the attempt would be fenced.
        for run in runs:
            run._portal._executor.shutdown(wait=True, cancel_futures=True)
        gateway.end_attempt()


def run_to_end(
    gateway: MemoryGateway,
    agent: Agent,
    crash: tuple[int, str] | None = None,
    answer: Callable[[MemoryGateway], object] | None = None,
) -> list[str]:
    """Attempts until the run has ended, with one crash at most. Returns the requests, over all attempts.

    answer: is called whenever the run waits, as a person does who answers.
    """
    sent: list[str] = []
    for _ in range(10):
        try:
            with requests(sent, crash):
                attempt(gateway, agent)
        except Crash:
            crash = None
        except dalsegno.Parked:
            pass
        if gateway.finish:
            return sent
        if gateway.open_waits and gateway.why_no_process:
            assert answer is not None, f"nobody answers {gateway.open_waits}"
            answer(gateway)
    raise AssertionError("the run has not ended after ten attempts")


@dataclass
class Outcome:
    """What a run has left, for comparison."""

    finish: Mapping[str, Any] | None
    head: int
    usage: dict[str, int]
    calls: list[tuple[str, str]]
    payments: list[Any]


def outcome(gateway: MemoryGateway, world: World) -> Outcome:
    """What a run has left: how it ended, its turns, usage, calls and payments."""
    head = gateway.rows.head["turn"] if gateway.rows.head else 0
    calls = sorted((call.id, call.state) for call in gateway.calls)
    return Outcome(gateway.finish, head, gateway.rows.usage, calls, sorted(world.payments.values(), key=repr))
