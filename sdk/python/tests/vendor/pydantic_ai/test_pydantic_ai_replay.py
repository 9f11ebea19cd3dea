"""The replay matrix: each kind of agent run, with a crash before and after each request to the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, Tool
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset

import dalsegno
from dalsegno.aio import AsyncRun
from dalsegno.pydantic_ai import Durability
from pydantic_ai_replay import Agent as Main
from pydantic_ai_replay import World, call, new_gateway, outcome, run_to_end

Run = AsyncRun[dict[str, Any]]


def one_turn(agent: Agent[None, Any], prompt: str = "Go.", **options: Any) -> Main:
    """An agent run that is one turn and ends the run."""

    async def main(run: Run) -> None:
        async with run.turn() as turn:
            result = await agent.run(prompt, **options)
            turn.finish(output={"answer": result.output})

    return main


def sync_and_async_tools(world: World) -> Main:
    def search(item: str) -> str:
        world.tool_runs.append("search")
        return f"{item}: 500"

    async def pay(cents: int) -> str:
        return world.pay(cents)

    model = world.model("m", [call("search", item="nails")], [call("pay", cents=500)], "done")
    policies = Durability[None](tools={"search": "readOnly", "pay": "retrySameKey"})
    return one_turn(Agent(model, name="a", tools=[search, pay], capabilities=[policies]))


def parallel_tools(world: World) -> Main:
    """Three equal calls and one other at the same time, which end in the reverse of their order."""
    left = 4

    async def pay(cents: int) -> str:
        nonlocal left
        left -= 1
        await asyncio.sleep(0.002 * max(left, 0))
        return world.pay(cents)

    calls = [call("pay", "1", cents=5), call("pay", "2", cents=5), call("pay", "3", cents=7), call("pay", "4", cents=5)]
    capability = Durability[None](tools={"pay": "retrySameKey"})
    return one_turn(Agent(world.model("m", calls, "done"), name="a", tools=[pay], capabilities=[capability]))


def refusals(world: World) -> Main:
    """A tool that asks for another try, one that fails, and one that raises `CallFailed`."""
    def pay(cents: int) -> str:
        if cents > 100:
            raise ModelRetry("too much")
        return world.pay(cents)

    def mail(to: str) -> str:
        raise ToolFailed("no such address")

    def book(seat: str) -> str:
        raise dalsegno.CallFailed({"why": "taken"})

    script = [[call("pay", "1", cents=500), call("mail", to="x")], [call("pay", "2", cents=50), call("book", seat="1A")]]
    policies = Durability[None](tools={"pay": "retrySameKey", "mail": "retrySameKey", "book": "retrySameKey"})
    return one_turn(Agent(world.model("m", *script, "done"), name="a", tools=[pay, mail, book], capabilities=[policies]))


class Order(BaseModel):
    item: str
    cents: int


def structured_output(world: World) -> Main:
    """An output tool, and a validator that refuses the first output."""
    script = [[call("final_result", "1", item="nails", cents=-1)], [call("final_result", "2", item="nails", cents=5)]]
    agent = Agent(world.model("m", *script), name="a", output_type=Order, capabilities=[Durability[None]()])

    @agent.output_validator
    def positive(order: Order) -> Order:
        if order.cents < 0:
            raise ModelRetry("the price is negative")
        return order

    async def main(run: Run) -> None:
        async with run.turn() as turn:
            result = await agent.run("Go.")
            assert isinstance(result.output, Order)
            turn.finish(output=result.output)

    return main


def streaming(world: World) -> Main:
    """A streamed model, and a handler of events: it sees each event of a tool once, or twice around a crash."""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        world.asked.append("m")
        if any(isinstance(message, ModelResponse) for message in messages):
            for part in ("do", "ne"):
                yield part
        else:
            yield {0: DeltaToolCall("pay", '{"cents": 5}', tool_call_id="1")}

    async def handle(ctx: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            world.tool_runs.append(type(event).__name__)

    def pay(cents: int) -> str:
        return world.pay(cents)

    capability = Durability[None](tools={"pay": "retrySameKey"}, event_stream_handler=handle)
    model = FunctionModel(stream_function=stream, model_name="m")
    return one_turn(Agent(model, name="a", tools=[pay], capabilities=[capability]))


def toolsets(world: World) -> Main:
    """A toolset with an id, a dynamic one, and a validator of arguments."""

    def pay(cents: int) -> str:
        return world.pay(cents)

    def mail(to: str) -> str:
        return world.pay(to)

    def check(ctx: RunContext[None], cents: int) -> None:
        if cents > 100:
            raise ModelRetry("too much")

    def choose(ctx: RunContext[None]) -> FunctionToolset[None]:
        return FunctionToolset([mail])

    script = [[call("pay", "1", cents=500), call("mail", "2", to="ann")], [call("pay", "3", cents=5)]]
    agent = Agent(
        world.model("m", *script, "done"),
        name="a",
        toolsets=[FunctionToolset([Tool(pay, args_validator=check)], id="bank"), DynamicToolset(choose, id="mail")],
        capabilities=[Durability[None](tools={"pay": "retrySameKey", "mail": "retrySameKey"})],
    )
    return one_turn(agent)


def agents_in_tools(world: World) -> Main:
    """Two agents that run in tools at the same time, each with an effect of its own."""
    inner: dict[str, Agent[None, str]] = {}
    for city in ("rome", "oslo"):

        def pay(city: str) -> str:
            return world.pay(city)

        model = world.model("inner", [call("pay", city=city)], f"paid in {city}")
        inner[city] = Agent(
            model, name=f"travel-{city}", tools=[pay], capabilities=[Durability[None](tools={"pay": "retrySameKey"})]
        )

    async def travel(city: str) -> str:
        return (await inner[city].run("Pay.")).output

    model = world.model("outer", [call("travel", "1", city="rome"), call("travel", "2", city="oslo")], "done")
    capability = Durability[None](tools={"travel": "retrySameKey"})
    return one_turn(Agent(model, name="a", tools=[travel], capabilities=[capability]))


def concurrent_runs(world: World) -> Main:
    """Two runs of one agent at the same time."""

    def pay(cents: int) -> str:
        return world.pay(cents)

    model = world.model("m", [call("pay", cents=5)], "done")
    agent = Agent(model, name="a", tools=[pay], capabilities=[Durability[None](tools={"pay": "retrySameKey"})])

    async def main(run: Run) -> None:
        async with run.turn() as turn:
            results = await asyncio.gather(agent.run("One."), agent.run("Two."))
            turn.finish(output=[result.output for result in results])

    return main


def three_turns(world: World) -> Main:
    """A turn for each question; the conversation is in the state."""

    def pay(cents: int) -> str:
        return world.pay(cents)

    model = world.model("m", [call("pay", cents=1)], "one", [call("pay", cents=1)], "two", "three")
    agent = Agent(model, name="a", tools=[pay], capabilities=[Durability[None](tools={"pay": "retrySameKey"})])

    async def main(run: Run) -> None:
        from pydantic_ai.messages import ModelMessagesTypeAdapter as Messages

        while run.next_turn <= 3:
            async with run.turn() as turn:
                history = Messages.validate_python(run.state.get("messages", []))
                result = await agent.run(f"Question {turn.number}", message_history=history)
                run.state["messages"] = Messages.dump_python(result.all_messages(), mode="json")
                if turn.number == 3:
                    turn.finish(output=result.output)

    return main


def run_timeout(world: World) -> Main:
    """The time of a run counts from its first attempt, so its start is stored."""

    def search(item: str) -> str:
        return "500"

    model = world.model("m", [call("search", item="nails")], "done")
    agent = Agent(model, name="a", tools=[search], capabilities=[Durability[None](tools={"search": "readOnly"})])
    return one_turn(agent, timeout=600)


MATRIX: list[Callable[[World], Main]] = [
    sync_and_async_tools,
    parallel_tools,
    refusals,
    structured_output,
    streaming,
    toolsets,
    agents_in_tools,
    concurrent_runs,
    three_turns,
    run_timeout,
]


@pytest.mark.parametrize("scenario", MATRIX, ids=lambda scenario: scenario.__name__)
def test_a_crash_at_any_request_changes_nothing_but_one_question(scenario: Callable[[World], Main]) -> None:
    world = World()
    with new_gateway() as gateway:
        sent = run_to_end(gateway, scenario(world))
        expected, asked = outcome(gateway, world), len(world.asked)
    for point in [(number, side) for number in range(len(sent)) for side in ("before", "after")]:
        world = World()
        with new_gateway() as gateway:
            run_to_end(gateway, scenario(world), point)
            assert outcome(gateway, world) == expected, (point, sent[point[0]])
        assert len(world.asked) <= asked + repeated(scenario), (point, sent[point[0]])


def repeated(scenario: Callable[[World], Main]) -> int:
    """How many requests to the model are open at the same time, so that a crash repeats them."""
    return 2 if scenario in (agents_in_tools, concurrent_runs) else 1
