"""`run_agent`: what a turn commits, sessions, contexts, output types and what ends an agent. In this process."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import Any

import pytest

pytest.importorskip("agents.memory", reason="openai-agents is not installed: hack/adapters.sh runs these tests")

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    RunConfig,
    RunContextWrapper,
    Usage,
    function_tool,
    input_guardrail,
)
from agents.testing import ScriptedModel
from pydantic import BaseModel

import dalsegno.aio
from dalsegno.aio import AsyncRun
from dalsegno.openai import RecordSession, guard, run_agent
from dalsegno.testing.memory import MemoryGateway
from openai_world import Asked, Run, attempt, calls, gateway, read, says


def test_an_agent_that_has_ended_is_not_asked_again(gateway: MemoryGateway) -> None:
    model = ScriptedModel([says("forty-two")], default_usage=Usage(input_tokens=7, output_tokens=3, total_tokens=10))

    async def work(run: Run) -> Any:
        result = await run_agent(run, guard(run, Agent(name="a", model=model)), "go")
        if run.attempt == 1:
            raise Asked
        return result

    with pytest.raises(Asked):
        attempt(gateway, work)
    result = attempt(gateway, work)
    assert (result.final_output, result.last_agent, len(model.calls)) == ("forty-two", "a", 1)
    assert [item.get("role") for item in result.history] == ["user", "assistant"]
    assert gateway.rows.usage == {"tokensIn": 7, "tokensOut": 3}


def test_each_turn_of_the_agent_is_a_turn_of_the_run_with_what_it_spent(gateway: MemoryGateway) -> None:
    usage = Usage(input_tokens=7, output_tokens=3, total_tokens=10)
    model = ScriptedModel([calls("look", "look"), calls("look", turn=2), says()], default_usage=usage)

    @function_tool
    def look() -> str:
        return "seen"

    async def work(run: Run) -> Any:
        await run_agent(run, guard(run, Agent(name="a", model=model, tools=[look]), look="readOnly"), "go")

    attempt(gateway, work)
    assert [it for it in gateway.requests if it.startswith("turns")] == ["turns/1", "turns/2", "turns/3"]
    assert gateway.rows.usage == {"tokensIn": 21, "tokensOut": 9, "toolCalls": 3}
    assert [call.id for call in gateway.calls if "look" in call.id] == ["1.look.c1-0", "1.look.c1-1", "2.look.c2-0"]


def test_a_session_gets_what_a_turn_adds_with_its_commit_and_once(gateway: MemoryGateway) -> None:
    fails = [False, True, False]

    @function_tool
    def look() -> str:
        if fails.pop(0):
            raise Asked
        return "seen"

    model = ScriptedModel([calls("look"), calls("look", turn=2), says(), says("again")])

    async def work(run: Run) -> Any:
        agent = guard(run, Agent(name="a", model=model, tools=[look]), look="retrySameKey")
        session = RecordSession(run, "chat")
        await run_agent(run, agent, "go", session=session)
        await run_agent(run, agent, "and then?", id="second", session=session)
        return await session.get_items()

    with pytest.raises(Asked):
        attempt(gateway, work)
    turn, look_call, look_output = {"role": "user"}, {"type": "function_call"}, {"type": "function_call_output"}
    message = {"role": "assistant"}
    stored = attempt(gateway, work)
    expected = [turn, look_call, look_output, look_call, look_output, message, turn, message]
    assert [{name: item[name] for name in kind} for item, kind in zip(stored, expected)] == expected
    assert len(stored) == len(expected) and len(model.calls) == 4
    assert len(read(model)) == 7, "the second agent reads the whole conversation"


class Verdict(BaseModel):
    guilty: bool
    why: list[str] = []


def test_an_output_type_is_the_same_in_each_attempt(gateway: MemoryGateway) -> None:
    answers = {"verdict": ('{"guilty": true, "why": ["x"]}', Verdict), "list": ('{"response": [1, 2]}', list[int])}
    model = ScriptedModel([says(text) for text, _ in answers.values()])

    async def work(run: Run) -> Any:
        found = []
        for id, (_, kind) in answers.items():
            agent = guard(run, Agent(name="judge", model=model, output_type=kind))
            found.append((await run_agent(run, agent, "go", id=id)).final_output)
        if run.attempt == 1:
            raise Asked(found)
        return found

    with pytest.raises(Asked) as first:
        attempt(gateway, work)
    expected = [Verdict(guilty=True, why=["x"]), [1, 2]]
    assert first.value.args[0] == expected and attempt(gateway, work) == expected and len(model.calls) == 2


@dataclasses.dataclass
class Desk:
    lamp: Any
    seen: int = 0


def test_a_mapping_as_context_is_durable_and_another_object_is_given_again(gateway: MemoryGateway) -> None:
    fails = [False, True, False]
    seen: list[Any] = []

    @function_tool
    def look(context: RunContextWrapper[Any]) -> str:
        if isinstance(context.context, dict):
            context.context["looks"] = context.context.get("looks", 0) + 1
            seen.append(dict(context.context))
        else:
            seen.append(context.context)
        if fails.pop(0):
            raise Asked
        return "seen"

    async def work(run: Run) -> Any:
        agent = guard(run, Agent(name="a", model=model, tools=[look]), look="retrySameKey")
        return await run_agent(run, agent, "go", context={"who": "ann"})

    model = ScriptedModel([calls("look"), calls("look", turn=2), says()])
    with pytest.raises(Asked):
        attempt(gateway, work)
    attempt(gateway, work)
    assert [it["looks"] for it in seen] == [1, 2, 2]

    with MemoryGateway() as other:
        model, desk = ScriptedModel([calls("look"), calls("look", turn=2), says()]), Desk(object())
        seen[:], fails[:] = [], [False, False]

        async def with_object(run: Run) -> Any:
            agent = guard(run, Agent(name="a", model=model, tools=[look]), look="retrySameKey")
            return await run_agent(run, agent, "go", context=desk)

        attempt(other, with_object)
        assert seen == [desk, desk] and "lamp" not in str(other.state)


def test_too_many_turns_raise_what_the_vendor_raises(gateway: MemoryGateway) -> None:
    @function_tool
    def look() -> str:
        return "seen"

    model = ScriptedModel([calls("look"), calls("look", turn=2), calls("look", turn=3)])

    async def work(run: Run) -> None:
        agent = guard(run, Agent(name="a", model=model, tools=[look]), look="readOnly")
        with pytest.raises(MaxTurnsExceeded):
            await run_agent(run, agent, "go", max_turns=2)
        await run.finish("failed", reason="TooManyTurns")

    attempt(gateway, work)
    assert len(model.calls) == 2 and gateway.finish is not None and gateway.finish["reason"] == "TooManyTurns"


def test_a_tripwire_commits_nothing(gateway: MemoryGateway) -> None:
    @input_guardrail
    def never(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, tripwire_triggered=True)

    model = ScriptedModel([says()])

    async def work(run: Run) -> None:
        agent = guard(run, Agent(name="a", model=model, input_guardrails=[never]))
        with pytest.raises(InputGuardrailTripwireTriggered):
            await run_agent(run, agent, "go")
        assert run.next_turn == 1 and run.state == {}

    attempt(gateway, work)


def test_a_model_for_all_agents_is_durable_too(gateway: MemoryGateway) -> None:
    model = ScriptedModel([calls("look"), says()])
    fails = [True, False]

    @function_tool
    def look() -> str:
        if fails.pop(0):
            raise Asked
        return "seen"

    async def work(run: Run) -> Any:
        agent = guard(run, Agent(name="a", model="not this one", tools=[look]), look="retrySameKey")
        return await run_agent(run, agent, "go", run_config=RunConfig(model=model))

    with pytest.raises(Asked):
        attempt(gateway, work)
    attempt(gateway, work)
    assert len(model.calls) == 2


def test_events_are_passed_on(gateway: MemoryGateway) -> None:
    model = ScriptedModel([says("hello there")])
    seen: list[str] = []

    async def work(run: Run) -> None:
        await run_agent(run, guard(run, Agent(name="a", model=model)), "go", on_event=lambda event: seen.append(event.type))

    attempt(gateway, work)
    assert seen.count("raw_response_event") > 2 and "run_item_stream_event" in seen


def test_after_a_rewind_the_model_is_asked_again(gateway: MemoryGateway) -> None:
    @function_tool
    def look() -> str:
        return "seen"

    model = ScriptedModel([calls("look"), says("one"), calls("look"), says("two")])

    async def work(run: Run) -> Any:
        agent = guard(run, Agent(name="a", model=model, tools=[look]), look="readOnly")
        output = (await run_agent(run, agent, "go")).final_output
        if run.attempt == 1:
            raise Asked
        return output

    with pytest.raises(Asked):
        attempt(gateway, work)
    gateway.rewind(0)
    assert attempt(gateway, work) == "two" and len(model.calls) == 4


def test_a_state_that_is_no_dict_is_refused(gateway: MemoryGateway) -> None:
    async def main() -> None:
        run: AsyncRun[list[Any]]
        async with await dalsegno.aio.attach(state=list, heartbeat=False, sigterm=False) as run:
            with pytest.raises(ValueError, match="attach with state=dict"):
                await run_agent(run, guard(run, Agent(name="a")), "go")
            await run.finish()

    gateway.start_attempt()
    os.environ.update(gateway.environment)
    asyncio.run(main())
