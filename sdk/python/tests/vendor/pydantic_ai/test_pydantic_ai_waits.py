"""Approvals and outside events: the run gives its process up, and goes on with the answer. With a crash at any request."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, DeferredToolRequests, RunContext, Tool
from pydantic_ai.capabilities import RequestInput
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.tools import DeferredToolResults

import dalsegno
from dalsegno.aio import AsyncRun
from dalsegno.pydantic_ai import Durability
from dalsegno.testing.memory import MemoryGateway
from pydantic_ai_replay import Agent as Main
from pydantic_ai_replay import World, attempt, call, new_gateway, outcome, run_to_end

Run = AsyncRun[dict[str, Any]]


def buyer(world: World, heard: list[str]) -> Main:
    """Two payments that need approval, and a third tool that asks only for large amounts."""

    def pay(cents: int) -> str:
        return world.pay(cents)

    def tip(ctx: RunContext[None], cents: int) -> str:
        if cents > 10 and not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"why": "a large tip"})
        return world.pay(f"tip {cents}")

    calls = [call("pay", "1", cents=5), call("pay", "2", cents=7), call("tip", "3", cents=50), call("tip", "4", cents=1)]
    agent = Agent(
        world.model("m", calls, "done"),
        name="a",
        tools=[Tool(pay, requires_approval=True), tip],
        capabilities=[Durability[None](tools={"pay": "retrySameKey", "tip": "retrySameKey"})],
    )

    async def main(run: Run) -> None:
        async with run.turn() as turn:
            result = await agent.run("Go.")
            heard[:] = returns(result.all_messages())
            turn.finish(output=result.output)

    return main


def returns(messages: list[ModelMessage]) -> list[str]:
    """What tools returned, as the model reads it."""
    return [str(part.content) for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def approve_all(gateway: MemoryGateway) -> None:
    for id in gateway.open_waits:
        gateway.approve(id)


def test_approvals_of_one_message_are_asked_together_and_each_allows_its_own_call() -> None:
    world, heard = World(), []  # type: ignore[var-annotated]
    with new_gateway() as gateway:
        with pytest.raises(dalsegno.Parked):
            attempt(gateway, buyer(world, heard))
        assert len(gateway.open_waits) == 3 and world.payments and list(world.payments.values()) == ["tip 1"]
        waits = {wait.request["proposal"]["cents"]: wait for wait in gateway.rows.waits.values()}
        assert {cents: wait.request["title"] for cents, wait in waits.items()} == {5: "Call pay", 7: "Call pay", 50: "Call tip"}
        assert waits[50].request["summary"] == '{"why": "a large tip"}'
        first, second, third = waits[5].id, waits[7].id, waits[50].id
        gateway.approve(first)
        gateway.approve(second, changes={"cents": 6})
        assert gateway.why_no_process, "all three are waited for"
        gateway.deny(third, by="bob", reason="too much")
        run_to_end(gateway, buyer(world, heard))
        assert sorted(map(str, world.payments.values())) == ["5", "6", "tip 1"] and world.asked == ["m", "m"]
        assert [text for text in heard if "bob denied the call" in text and "too much" in text], heard
        used = {wait.used_by: wait.id for wait in gateway.rows.waits.values() if wait.used_by}
        by_cents = {call.arguments["cents"]: call.id for call in gateway.calls if ".pay." in call.id}
        assert used == {by_cents[5]: first, by_cents[6]: second}


def test_a_change_that_is_no_object_makes_no_call_and_the_model_reads_it() -> None:
    world, heard = World(), []  # type: ignore[var-annotated]
    with new_gateway() as gateway:
        with pytest.raises(dalsegno.Parked):
            attempt(gateway, buyer(world, heard))
        for wait in list(gateway.rows.waits.values()):
            gateway.approve(wait.id, changes="pay at most 4" if wait.request["proposal"]["cents"] == 5 else {})
        run_to_end(gateway, buyer(world, heard))
        assert sorted(map(str, world.payments.values())) == ["7", "tip 1", "tip 50"]
        assert [text for text in heard if "ann" in text and "> pay at most 4" in text], heard


def test_a_crash_around_approvals_pays_each_amount_once() -> None:
    world = World()
    with new_gateway() as gateway:
        sent = run_to_end(gateway, buyer(world, []), answer=approve_all)
        expected = outcome(gateway, world)
    assert sorted(map(str, expected.payments)) == ["5", "7", "tip 1", "tip 50"]
    for point in [(number, side) for number in range(len(sent)) for side in ("before", "after")]:
        world = World()
        with new_gateway() as gateway:
            run_to_end(gateway, buyer(world, []), point, answer=approve_all)
            assert outcome(gateway, world) == expected, (point, sent[point[0]])
        assert len(world.asked) <= 3, point


def test_without_approvals_the_requests_are_the_output_of_the_agent() -> None:
    world = World()

    def pay(cents: int) -> str:
        return world.pay(cents)

    agent = Agent(
        world.model("m", [call("pay", "1", cents=5)], "done"),
        name="a",
        output_type=[str, DeferredToolRequests],
        tools=[Tool(pay, requires_approval=True)],
        capabilities=[Durability[None](tools={"pay": "retrySameKey"}, approvals=False)],
    )

    async def main(run: Run) -> None:
        async with run.turn() as turn:
            first = await agent.run("Go.")
            assert isinstance(first.output, DeferredToolRequests)
            yes = first.output.build_results(approve_all=True)
            second = await agent.run(message_history=first.all_messages(), deferred_tool_results=yes)
            turn.finish(output=str(second.output))

    with new_gateway() as gateway:
        run_to_end(gateway, main)
        assert list(world.payments.values()) == [5] and gateway.finish and gateway.finish["output"] == "done"


def asker(world: World, ask: Callable[..., Any], timeout: timedelta | None = None) -> Main:
    """A payment about which `RequestInput` asks."""

    def pay(cents: int) -> str:
        return world.pay(cents)

    agent = Agent(
        world.model("m", [call("pay", "1", cents=5)], "done"),
        name="a",
        tools=[Tool(pay, requires_approval=True)],
        capabilities=[
            Durability[None](tools={"pay": "retrySameKey"}, approvals=False),
            RequestInput[None](ask=ask, timeout=timeout),
        ],
    )

    async def main(run: Run) -> None:
        async with run.turn() as turn:
            result = await agent.run("Go.")
            turn.finish(output=returns(result.all_messages()))

    return main


def test_an_outside_event_is_a_message_whose_topic_is_the_token() -> None:
    tokens: list[str] = []

    def ask(ctx: RunContext[None], requests: DeferredToolRequests, token: str) -> None:
        tokens.append(token)

    def answer(gateway: MemoryGateway) -> None:
        gateway.send({"approvals": {"1": True}}, topic=tokens[-1])

    world = World()
    with new_gateway() as gateway:
        sent = run_to_end(gateway, asker(world, ask), answer=answer)
        expected = outcome(gateway, world)
        assert tokens == ["1.event.deferred_tool_calls.0"] and expected.payments == [5]
        assert all("taken" in message for message in gateway.rows.messages), "the turn takes the message"
    for point in [(number, side) for number in range(len(sent)) for side in ("before", "after")]:
        world, before = World(), len(tokens)
        with new_gateway() as gateway:
            run_to_end(gateway, asker(world, ask), point, answer=answer)
            assert outcome(gateway, world) == expected, (point, sent[point[0]])
        assert len(tokens) - before <= 2 and len(set(tokens)) == 1, "it is asked once, and again only after a crash in it"


def test_an_ask_that_answers_at_once_opens_no_wait() -> None:
    def ask(ctx: RunContext[None], requests: DeferredToolRequests, token: str) -> DeferredToolResults:
        return requests.build_results(approve_all=True)

    world = World()
    with new_gateway() as gateway:
        run_to_end(gateway, asker(world, ask))
        assert not gateway.rows.waits and list(world.payments.values()) == [5]


def test_an_outside_event_that_does_not_come_in_time_is_denied() -> None:
    world = World()
    main = asker(world, lambda ctx, requests, token: None, timeout=timedelta(hours=1))
    with new_gateway() as gateway:
        with pytest.raises(dalsegno.Parked):
            attempt(gateway, main)
        gateway.advance(3601)
        run_to_end(gateway, main)
        assert not world.payments and gateway.finish and "No decision on this tool call arrived" in gateway.finish["output"][0]


def test_a_suspended_run_parks_before_the_next_question_to_the_model() -> None:
    world = World()
    with new_gateway() as gateway:

        def search(item: str) -> str:
            gateway.suspend()
            dalsegno._current.current()._beat()
            return "500"

        model = world.model("m", [call("search", item="nails")], "done")
        agent = Agent(model, name="a", tools=[search], capabilities=[Durability[None](tools={"search": "readOnly"})])

        async def main(run: Run) -> None:
            async with run.turn() as turn:
                turn.finish(output=(await agent.run("Go.")).output)

        with pytest.raises(dalsegno.Suspended):
            attempt(gateway, main)
        assert world.asked == ["m"] and gateway.why_no_process == "it is suspended"
        gateway.suspend(False)
        run_to_end(gateway, main)
        assert world.asked == ["m", "m"]
