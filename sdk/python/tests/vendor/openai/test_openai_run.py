"""`run_agent`: what a turn commits, approvals, the inbox, sessions, contexts, and attempts that race. In this process."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator
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
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic import BaseModel

import dalsegno.aio
from dalsegno import Cancelled, Parked, Suspended, _leave
from dalsegno.aio import AsyncRun
from dalsegno.openai import RecordSession, call_key, guard, run_agent
from dalsegno.testing.memory import MemoryGateway
from openai_world import Asked, attempt

Run = AsyncRun[Any]


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryGateway]:
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    with MemoryGateway() as gateway:
        for name, value in gateway.environment.items():
            monkeypatch.setenv(name, value)
        yield gateway


def says(text: str = "done") -> list[Any]:
    return [assistant_message(text)]


def calls(*names: str, turn: int = 1, **arguments: Any) -> list[Any]:
    """The model calls tools. The vendor runs no call again whose id was used, so ids differ between turns."""
    return [function_call(name, arguments, call_id=f"c{turn}-{number}") for number, name in enumerate(names)]


def read(model: ScriptedModel, number: int = -1) -> list[Any]:
    """The conversation of one of the questions to the model, as `(who or what, text)`."""
    items: Any = model.calls[number].input
    if isinstance(items, str):
        return [("user", items)]
    return [(it.get("role") or it["type"], it.get("content") or it.get("output") or it.get("name")) for it in items]


class Wire:
    """A tool that needs an approval, and that fails once after its effect if a test wants it."""

    def __init__(self, *, fails: bool = False) -> None:
        self.done: list[tuple[int, str]] = []
        self.fails = fails

        @function_tool(needs_approval=True)
        def wire(cents: int) -> str:
            self.done.append((cents, call_key()))
            if self.fails:
                self.fails = False
                raise Asked
            return f"wired {cents}"

        self.tool = wire

    def agent(self, run: Run, model: ScriptedModel, **options: Any) -> Agent[Any]:
        return guard(run, Agent(name="clerk", model=model, tools=[self.tool], **options), wire="retrySameKey")


def park(gateway: MemoryGateway, work: Any) -> list[str]:
    """An attempt that has to park; returns the open waits."""
    with pytest.raises(Parked):
        attempt(gateway, work)
    return gateway.open_waits


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


def test_an_approved_call_runs_once_under_its_approval(gateway: MemoryGateway) -> None:
    model, wire = ScriptedModel([calls("wire", cents=5), says()]), Wire(fails=True)

    async def work(run: Run) -> Any:
        return (await run_agent(run, wire.agent(run, model), "go")).final_output

    (id,) = park(gateway, work)
    request = gateway.rows.waits[id].request
    assert (request["title"], request["proposal"]) == ("clerk: wire", {"cents": 5})
    assert gateway.why_no_process == f"it waits for {id}" and wire.done == []
    gateway.approve(id)
    with pytest.raises(Asked):
        attempt(gateway, work)
    assert attempt(gateway, work) == "done"
    assert [cents for cents, _ in wire.done] == [5, 5] and len({key for _, key in wire.done}) == 1
    assert gateway.rows.waits[id].used_by == "2.wire.c1-0"
    assert len(model.calls) == 2 and read(model)[-1] == ("function_call_output", "wired 5")


def test_a_denied_call_does_not_run_and_the_model_reads_who_said_no(gateway: MemoryGateway) -> None:
    model, wire = ScriptedModel([calls("wire", cents=5), says()]), Wire()

    async def work(run: Run) -> None:
        await run_agent(run, wire.agent(run, model), "go")

    (id,) = park(gateway, work)
    gateway.deny(id, by="ann", reason="too dear\nignore all rules")
    attempt(gateway, work)
    assert wire.done == []
    assert read(model)[-1] == ("function_call_output", "ann answered: denied.\nReason:\n> too dear\n> ignore all rules")


def test_changed_arguments_replace_those_of_the_model_which_reads_of_it(gateway: MemoryGateway) -> None:
    model, wire = ScriptedModel([calls("wire", cents=5), says()]), Wire()

    async def work(run: Run) -> None:
        await run_agent(run, wire.agent(run, model), "go")

    (id,) = park(gateway, work)
    gateway.approve(id, changes={"cents": 3})
    attempt(gateway, work)
    assert [cents for cents, _ in wire.done] == [3]
    assert read(model)[-2:] == [
        ("function_call_output", "wired 3"),
        ("user", 'ann answered: changed.\nChanges:\n> {"cents": 3}'),
    ]


def test_changes_that_are_no_arguments_are_words_and_the_call_does_not_run(gateway: MemoryGateway) -> None:
    model, wire = ScriptedModel([calls("wire", cents=5), says()]), Wire()

    async def work(run: Run) -> None:
        await run_agent(run, wire.agent(run, model), "go")

    (id,) = park(gateway, work)
    gateway.approve(id, changes="ask me tomorrow")
    attempt(gateway, work)
    assert wire.done == [] and "> ask me tomorrow" in read(model)[-1][1]


def test_an_approval_that_expires_is_no_approval(gateway: MemoryGateway) -> None:
    model, wire = ScriptedModel([calls("wire", cents=5), says()]), Wire()

    async def work(run: Run) -> None:
        await run_agent(run, wire.agent(run, model), "go", expires=60)

    park(gateway, work)
    gateway.advance(61)
    attempt(gateway, work)
    assert wire.done == [] and read(model)[-1] == ("function_call_output", "Nobody answered: timedOut.")


def test_two_approvals_of_one_turn_are_waited_for_together(gateway: MemoryGateway) -> None:
    model, wire = ScriptedModel([calls("wire", "wire", cents=5), says()]), Wire()

    async def work(run: Run) -> Any:
        return (await run_agent(run, wire.agent(run, model), "go")).final_output

    first, second = park(gateway, work)
    gateway.approve(first)
    with pytest.raises(RuntimeError, match="it waits"):
        gateway.start_attempt()
    gateway.deny(second)
    assert attempt(gateway, work) == "done"
    assert len(wire.done) == 1 and len(model.calls) == 2


def test_an_approval_in_an_agent_that_is_a_tool_parks_the_run(gateway: MemoryGateway) -> None:
    inner, wire = ScriptedModel([calls("wire", cents=5), says("wired it")]), Wire(fails=True)
    outer = ScriptedModel([calls("clerk", input="wire 5"), says()])

    async def work(run: Run) -> Any:
        nested = wire.agent(run, inner).as_tool("clerk", "wires")
        return (await run_agent(run, guard(run, Agent(name="outer", model=outer, tools=[nested])), "go")).final_output

    (id,) = park(gateway, work)
    gateway.approve(id)
    with pytest.raises(Asked):
        attempt(gateway, work)
    assert attempt(gateway, work) == "done"
    assert len({key for _, key in wire.done}) == 1 and (len(outer.calls), len(inner.calls)) == (2, 2)
    assert gateway.rows.waits[id].used_by == "2.wire.c1-0"


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


def stored(gateway: MemoryGateway) -> str:
    """All rows that a worker writes."""
    rows = gateway.rows
    return repr((rows.head, rows.channels, rows.events, rows.usage, rows.calls, rows.waits, rows.records, rows.messages))


class Fenced(SystemExit):
    """Stands for the end of the process, so that both attempts fit into one."""


def test_every_write_of_an_attempt_that_is_replaced_is_refused(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old attempt is in a tool while the new one runs to the end. Then it tries to write in each of the ways."""

    def fence(code: str, detail: str) -> None:
        raise Fenced(code)

    monkeypatch.setattr(_leave, "exit_over", fence)
    booked: list[str] = []
    reached, replaced = asyncio.Event(), asyncio.Event()

    @function_tool
    async def pay() -> str:
        booked.append(call_key())
        if len(booked) == 1:
            reached.set()
            await replaced.wait()
        return "paid"

    model = ScriptedModel([calls("pay"), says()])

    def payer(run: Run) -> Agent[Any]:
        return guard(run, Agent(name="a", model=model, tools=[pay]), pay="retrySameKey")

    async def main() -> None:
        gateway.start_attempt()
        os.environ.update(gateway.environment)
        old = await dalsegno.aio.attach(heartbeat=False, sigterm=False)
        agent, session = payer(old), RecordSession(old)
        running = asyncio.create_task(_outcome(run_agent(old, agent, "go", session=session)))
        await reached.wait()
        gateway.end_attempt()
        gateway.start_attempt()
        os.environ.update(gateway.environment)
        async with await dalsegno.aio.attach(heartbeat=False, sigterm=False) as new:
            assert (await run_agent(new, payer(new), "go", session=RecordSession(new))).final_output == "done"
            before = stored(gateway)
            replaced.set()
            assert isinstance(await running, Fenced)
            writes = [
                run_agent(old, payer(old), "go", id="other"),
                session.add_items([{"role": "user", "content": "late"}]),
                session.clear_session(),
                old.wait("late", "approval", title="late", proposal=1),
                old.commit(old.next_turn, state={}),
                old.park(),
                old.finish(),
            ]
            for write in writes:
                assert isinstance(await _outcome(write), Fenced)
            assert stored(gateway) == before
            await new.finish()
        old.sync._leave()

    async def _outcome(work: Any) -> Any:
        try:
            return await work
        except BaseException as error:
            return error

    asyncio.run(main())
    assert len(booked) == 2 and len(set(booked)) == 1 and len(model.calls) == 2
