"""`run_agent`: messages of people, a suspend and a cancel. In this process."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("agents.memory", reason="openai-agents is not installed: hack/adapters.sh runs these tests")

from agents import Agent, function_tool
from agents.testing import ScriptedModel

from dalsegno import Cancelled, Suspended
from dalsegno.openai import guard, run_agent
from dalsegno.testing.memory import MemoryGateway
from openai_world import Asked, Run, attempt, calls, gateway, read, says


def test_a_message_is_given_to_the_model_as_words_of_its_author(gateway: MemoryGateway) -> None:
    @function_tool
    def look() -> str:
        gateway.send("hurry up", author="bob")
        return "seen"

    model = ScriptedModel([calls("look"), says()])

    async def work(run: Run) -> None:
        await run_agent(run, guard(run, Agent(name="a", model=model, tools=[look]), look="readOnly"), "go")

    gateway.send("hello", author="ann")
    attempt(gateway, work)
    assert read(model, 0) == [("user", "go"), ("user", "Message from ann:\n> hello")]
    assert read(model)[-1] == ("user", "Message from bob:\n> hurry up")
    assert [message["taken"] for message in gateway.rows.messages] == [1, 2]


def test_a_message_that_comes_after_the_model_has_answered_waits_for_the_next_turn(gateway: MemoryGateway) -> None:
    fails = [True, False]

    @function_tool
    def look() -> str:
        if fails.pop(0):
            raise Asked
        return "seen"

    model = ScriptedModel([calls("look"), says()])

    async def work(run: Run) -> None:
        await run_agent(run, guard(run, Agent(name="a", model=model, tools=[look]), look="retrySameKey"), "go")

    with pytest.raises(Asked):
        attempt(gateway, work)
    gateway.send("hello")
    attempt(gateway, work)
    assert read(model)[-1] == ("user", "Message from ann:\n> hello") and len(model.calls) == 2


def test_messages_are_left_alone_if_the_agent_takes_them_itself(gateway: MemoryGateway) -> None:
    model = ScriptedModel([says()])

    async def work(run: Run) -> Any:
        await run_agent(run, guard(run, Agent(name="a", model=model)), "go", inbox=False)
        return await run.read_inbox()

    gateway.send("hello")
    assert [message.value for message in attempt(gateway, work)] == ["hello"] and read(model) == [("user", "go")]


def test_a_suspended_run_leaves_between_two_turns_and_goes_on_later(gateway: MemoryGateway) -> None:
    @function_tool
    def look() -> str:
        gateway.suspend()
        return "seen"

    model = ScriptedModel([calls("look"), says()])

    async def work(run: Run) -> Any:
        agent = guard(run, Agent(name="a", model=model, tools=[look]), look="retrySameKey")
        return (await run_agent(run, agent, "go")).final_output

    with pytest.raises(Suspended):
        attempt(gateway, work)
    assert gateway.rows.head is not None and gateway.why_no_process == "it is suspended"
    gateway.suspend(on=False)
    assert attempt(gateway, work) == "done" and len(model.calls) == 2


def test_a_cancelled_run_leaves_between_two_turns(gateway: MemoryGateway) -> None:
    @function_tool
    def look() -> str:
        gateway.cancel()
        return "seen"

    model = ScriptedModel([calls("look"), says()])

    async def work(run: Run) -> None:
        await run_agent(run, guard(run, Agent(name="a", model=model, tools=[look]), look="readOnly"), "go")

    with pytest.raises(Cancelled):
        attempt(gateway, work)
    assert len(model.calls) == 1
