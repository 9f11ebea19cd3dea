"""Names, policies, probes and errors of `dalsegno.pydantic_ai`, and conversations in records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, BinaryContent, FunctionToolset
from pydantic_ai.capabilities import ResolveModelId
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationStore, InMemoryConversationStore
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    CallToolResult,
    CapabilityOperationId,
    EventStreamHandlerId,
    JournalOperationNamer,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_ai.usage import RunUsage

import dalsegno
from dalsegno.aio import AsyncRun
from dalsegno.pydantic_ai import Durability, Probe, RecordConversationStore, call_key
from dalsegno.testing.memory import MemoryGateway
from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall
from pydantic_ai_replay import Agent as Main
from pydantic_ai_replay import Crash, World, attempt, call, new_gateway, requests, run_to_end

Run = AsyncRun[dict[str, Any]]


def pay(cents: int) -> str:
    return "paid"


def one_turn(agent: Agent[None, str]) -> Main:
    async def main(run: Run) -> None:
        async with run.turn() as turn:
            turn.finish(output=(await agent.run("Go.")).output)

    return main


def payer(world: World, policy: Any, *tools: Any) -> Main:
    def pay(cents: int) -> str:
        return world.pay(cents)

    model = world.model("m", [call("pay", cents=5)], "done")
    return one_turn(Agent(model, name="a", tools=tools or [pay], capabilities=[Durability[None](tools={"pay": policy})]))


def test_the_ids_of_calls_stay_the_same_in_each_version() -> None:
    """Pinned: another id would ask the model again, and pay again, in the runs that are open during an upgrade."""
    with new_gateway() as gateway:
        run_to_end(gateway, payer(World(), "retrySameKey"))
        assert [(call.id, call.policy) for call in gateway.calls] == [
            ("1.a__model.request.f1295d8c.0", "readOnly"),
            ("1.pay.413b9e0608f5.0", "retrySameKey"),
            ("1.a__model.request.f1295d8c.1", "readOnly"),
        ]
        assert gateway.calls[1].key == "2f9a3d51-6a4e-4c58-9d0e-0f3b7f3c9a10:1.pay.413b9e0608f5.0"
        assert gateway.calls[1].result == {"result": "paid 5", "kind": "tool_return"}


def test_the_names_of_operations_are_those_of_pydantic_ai() -> None:
    namer = JournalOperationNamer("buyer")
    assert [
        namer.operation_name(id)
        for id in (
            ModelRequestId(model_name="m"),
            ModelRequestId("other", streaming=True, model_name="m"),
            ModelCompactMessagesId(model_name="m"),
            EventStreamHandlerId(),
            ToolsetGetToolsId("mcp", toolset_id="bank"),
            ToolsetGetToolsId("dynamic", toolset_id="bank"),
            ToolsetValidateToolArgumentsId("function", toolset_id="<agent>"),
            ToolsetCallToolId("function", toolset_id="<agent>"),
            CapabilityOperationId("search", operation="fetch"),
        )
    ] == [
        "buyer__model.request",
        "buyer__model.request_stream.other",
        "buyer__model.compact_messages",
        "buyer__event_stream_handler",
        "buyer__mcp_server__bank.get_tools",
        "buyer__dynamic_toolset__bank.get_tools",
        "buyer__function_toolset__<agent>.validate_args",
        "buyer__function_toolset__<agent>.call_tool",
        "buyer__capability__search.fetch",
    ]


@pytest.mark.parametrize("stored", [{"result": 5, "kind": "tool_return"}, {"message": "no", "kind": "tool_failed"}])
def test_what_this_package_stores_itself_is_read_by_pydantic_ai(stored: dict[str, Any]) -> None:
    assert JSON_CODEC.dump(CallToolResult, JSON_CODEC.load(CallToolResult, stored)) == stored


def test_a_tool_without_a_policy_is_an_error_at_build() -> None:
    with pytest.raises(UserError, match="'pay' has no policy"):
        Agent("test", name="a", tools=[pay], capabilities=[Durability[None]()])
    with pytest.raises(UserError, match="'pay' has no policy"):
        Agent("test", name="a", toolsets=[FunctionToolset([pay], id="bank")], capabilities=[Durability[None]()])


def test_a_tool_that_is_added_later_without_a_policy_is_an_error_before_the_model_is_asked() -> None:
    world = World()
    agent = Agent(world.model("m", [call("pay", cents=5)], "done"), name="a", capabilities=[Durability[None]()])
    agent.tool_plain(pay)
    with new_gateway() as gateway, pytest.raises(UserError, match="'pay' has no policy"):
        attempt(gateway, one_turn(agent))
    assert not world.asked


def test_what_cannot_be_made_durable_is_an_error_at_build() -> None:
    class Own(AbstractToolset[None]):
        @property
        def id(self) -> str:
            return "own"

        async def get_tools(self, ctx: Any) -> dict[str, ToolsetTool[None]]:
            return {}

        async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
            return None

    policies = {"pay": "retrySameKey"}
    with pytest.raises(UserError, match="has a timeout"):
        Agent("test", name="a", toolsets=[FunctionToolset([pay], id="b", timeout=5)], capabilities=[durability(policies)])
    with pytest.raises(UserError, match="is made by `dalsegno.tool`"):
        Agent("test", name="a", tools=[dalsegno.tool(policy="ask")(pay)], capabilities=[durability(policies)])
    with pytest.raises(UserError, match="cannot be made durable"):
        Agent("test", name="a", toolsets=[Own()], capabilities=[durability({})])
    with pytest.raises(UserError, match="unique `name`"):
        Agent("test", capabilities=[durability({})])
    with pytest.raises(ValueError, match="a policy is"):
        durability({"pay": "probe"})


def durability(policies: dict[str, Any]) -> Durability[None]:
    return Durability(tools=policies)


def test_outside_of_a_turn_an_agent_run_is_an_error() -> None:
    agent = Agent("test", name="a", capabilities=[Durability[None]()])
    with pytest.raises(dalsegno.NotAttached):
        agent.run_sync("Go.")

    async def main(run: Run) -> None:
        await agent.run("Go.")

    with new_gateway() as gateway, pytest.raises(dalsegno.Error, match="open a turn around it"):
        attempt(gateway, main)
    with pytest.raises(LookupError):
        call_key()


def crash_in_tool(world: World, gateway: MemoryGateway, policy: Any) -> None:
    """The process dies after the payment and before its result is stored."""
    with pytest.raises(Crash), requests([], (4, "before")):
        attempt(gateway, payer(world, policy))
    assert list(world.payments.values()) == [5] and gateway.calls[-1].state == "started"


def test_a_tool_that_may_have_run_is_never_an_answer_to_the_model() -> None:
    world = World()
    with new_gateway() as gateway:
        crash_in_tool(world, gateway, "ask")
        with pytest.raises(RuntimeError, match="is held"):
            gateway.start_attempt()
        gateway.settle(gateway.calls[-1].id, "completed", result={"result": "paid, said the bank", "kind": "tool_return"})
        run_to_end(gateway, payer(world, "ask"))
        assert world.tool_runs == ["pay 5"] and world.asked == ["m", "m"]


def test_a_probe_that_finds_the_effect_gives_its_result_to_the_model() -> None:
    world = World()

    async def find(cents: int, key: str) -> str:
        return f"the bank has {world.payments[key]} cents"

    with new_gateway() as gateway:
        crash_in_tool(world, gateway, Probe(find))
        run_to_end(gateway, payer(world, Probe(find)))
        assert world.tool_runs == ["pay 5"] and world.asked == ["m", "m"]
        assert gateway.calls[1].result == {"result": "the bank has 5 cents", "kind": "tool_return"}


def test_a_probe_that_finds_nothing_lets_the_tool_run_under_the_same_key() -> None:
    world = World()

    def find(cents: int) -> str:
        raise dalsegno.CallFailed

    with new_gateway() as gateway:
        crash_in_tool(world, gateway, Probe(find))
        run_to_end(gateway, payer(world, Probe(find)))
        assert world.tool_runs == ["pay 5", "pay 5"] and len(world.payments) == 1 and len(gateway.calls) == 3


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_tool_says_that_it_has_spent_counts_with_its_call(is_async: bool) -> None:
    world = World()

    def pay(cents: int) -> str:
        dalsegno.spent(cost_micro_usd=7)
        return world.pay(cents)

    async def apay(cents: int) -> str:
        return pay(cents)

    apay.__name__ = "pay"
    with new_gateway() as gateway:
        run_to_end(gateway, payer(world, "ask", apay if is_async else pay))
        assert [(it.state, it.tool) for it in gateway.calls if it.policy == "ask"] == [("completed", "pay")]
        assert gateway.rows.usage == {"tokensIn": 20, "tokensOut": 10, "toolCalls": 1, "costMicroUSD": 7}


def test_a_tool_that_runs_after_its_probe_counts_what_it_spent() -> None:
    world = World()

    def pay(cents: int) -> str:
        dalsegno.spent(cost_micro_usd=7)
        return world.pay(cents)

    def find(cents: int) -> str:
        raise dalsegno.CallFailed

    with new_gateway() as gateway:
        crash_in_tool(world, gateway, Probe(find))
        run_to_end(gateway, payer(world, Probe(find), pay))
        assert gateway.rows.usage["costMicroUSD"] == 7 and len(world.payments) == 1


def test_what_an_agent_spends_in_a_tool_counts_with_the_call_of_the_tool_and_is_not_in_its_result() -> None:
    world = World()
    inner = Agent(world.model("inner", "rome"), name="inner", capabilities=[Durability[None]()])

    async def pay(cents: int) -> str:
        return (await inner.run("Go.")).output

    with new_gateway() as gateway:
        sent = run_to_end(gateway, payer(world, "retrySameKey", pay))
        (stored,) = (it for it in gateway.calls if it.policy == "retrySameKey")
        assert stored.result == {"result": "rome", "kind": "tool_return"}
        whole = gateway.rows.usage
    assert whole == {"tokensIn": 30, "tokensOut": 15, "toolCalls": 1}
    with new_gateway() as gateway:
        stored_at = next(at for at, it in enumerate(sent) if it.startswith("calls/1.pay.") and it.endswith("/complete"))
        with pytest.raises(Crash), requests([], (stored_at, "after")):
            attempt(gateway, payer(world, "retrySameKey", pay))
        assert gateway.rows.usage == {"tokensIn": 10, "tokensOut": 5}, "no turn is committed yet"
        run_to_end(gateway, payer(world, "retrySameKey", pay))
        assert gateway.rows.usage == whole


@pytest.mark.parametrize("where", ["step", "tool"])
def test_what_an_agent_spends_in_a_step_or_a_tool_counts_with_its_call(where: str) -> None:
    world = World()
    agent = Agent(world.model("m", "rome"), name="a", capabilities=[Durability[None]()])

    async def answer() -> str:
        return (await agent.run("Go.")).output

    answers = dalsegno.tool(policy="readOnly", name="answers")(answer)

    async def main(run: AsyncRun[dict[str, Any]]) -> None:
        async with run.turn() as turn:
            assert await (turn.step("answer", answer) if where == "step" else answers()) == "rome"
            if run.attempt == 1:
                raise Crash
            turn.finish()

    with new_gateway() as gateway:
        run_to_end(gateway, main)
        assert world.asked == ["m"] and gateway.rows.usage == {"tokensIn": 10, "tokensOut": 5}


def test_another_exception_leaves_the_outcome_unknown_and_the_same_key_for_the_next_attempt() -> None:
    world, fails = World(), [True]

    def pay(cents: int) -> str:
        world.pay(cents)
        if fails.pop():
            raise ConnectionError("the bank is away")
        return "paid"

    with new_gateway() as gateway:
        with pytest.raises(ConnectionError):
            attempt(gateway, payer(world, "retrySameKey", pay))
        fails.append(False)
        run_to_end(gateway, payer(world, "retrySameKey", pay))
        assert len(world.payments) == 1 and world.tool_runs == ["pay 5", "pay 5"] and world.asked == ["m", "m"]


def test_a_key_that_the_tool_refuses_ends_the_agent() -> None:
    def pay(cents: int) -> str:
        raise dalsegno.KeyRefused({"status": 422})

    world = World()
    with new_gateway() as gateway:
        with pytest.raises(dalsegno.KeyRefused):
            attempt(gateway, payer(world, "retrySameKey", pay))
        assert gateway.calls[-1].state == "keyRefused" and world.asked == ["m"]


def test_after_a_rewind_the_model_is_asked_again_and_an_equal_payment_is_not_made_again() -> None:
    world = World()

    def pay(cents: int) -> str:
        return world.pay(cents)

    model = world.model("m", [call("pay", cents=5)], "done")
    agent = Agent(model, name="a", tools=[pay], capabilities=[Durability[None](tools={"pay": "retrySameKey"})])

    async def two_turns(run: Run) -> None:
        while run.next_turn <= 2:
            async with run.turn() as turn:
                await agent.run("Go.")
                if turn.number == 2 and run.branch:
                    turn.finish()
        if not run.branch:
            raise Crash

    with new_gateway() as gateway:
        with pytest.raises(Crash):
            attempt(gateway, two_turns)
        assert world.asked == ["m"] * 4 and world.tool_runs == ["pay 5"] * 2
        gateway.rewind(1)
        run_to_end(gateway, two_turns)
        assert world.asked == ["m"] * 6 and world.tool_runs == ["pay 5"] * 2
        assert gateway.rows.usage["toolCalls"] >= 2


def say(text: str) -> ModelMessage:
    return ModelRequest(parts=[UserPromptPart(text)])


async def story(store: ConversationStore, large: str) -> list[Any]:
    """What a store is asked, and what it says."""
    told: list[Any] = []

    async def tell(id: str) -> None:
        loaded = await store.load(id)
        told.append(loaded and (loaded.messages, loaded.usage.requests))

    first = Conversation(conversation_id="a/b c", messages=[say("one"), say(large)], usage=RunUsage(requests=2))
    told.append(len(await store.save(first, scope="ann")))
    first.messages.append(ModelRequest(parts=[UserPromptPart([BinaryContent(b"\0\1", media_type="image/png")])]))
    told.append(len(await store.save(first)))
    await tell("a/b c")
    with pytest.raises(ConversationConflict):
        await store.save(Conversation(conversation_id="a/b c", messages=[say("other")]))
    fork = await store.fork("a/b c", at=1, new_conversation_id="fork")
    fork.messages.append(say("two"))
    await store.save(fork)
    branched = await store.branch("a/b c", at=2, expected_revision=first.revision)
    branched.messages.append(say("three"))
    await store.save(branched)
    await tell("fork")
    await tell("a/b c")
    window = await store.load("a/b c", limit=1)
    told.append(window and window.messages)
    told.append([record.conversation_id for record in await store.list_conversations(scope="ann")])
    told.append(len(await store.list_conversations(scope="bob")))
    await store.delete("a/b c")
    await tell("a/b c")
    await tell("fork")
    told.append([record.conversation_id for record in await store.list_conversations()])
    return told


def plain(told: Sequence[Any]) -> Any:
    """Without the times at which the messages were made."""
    return [repr(it).split("timestamp=")[0] if not isinstance(it, tuple) else len(it[0]) for it in told]


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("large", ["two", "ü" * 2_500_000], ids=["small", "large"])
def test_conversations_in_records_are_those_of_the_store_in_memory(in_turn: bool, large: str) -> None:
    told: list[Any] = []

    async def main(run: Run) -> None:
        store = RecordConversationStore(run)
        if in_turn:
            async with run.turn() as turn:
                told.append(await story(store, large))
                turn.finish()
        else:
            told.append(await story(store, large))
            await run.finish()

    with new_gateway() as gateway:
        run_to_end(gateway, main)
        keys = sorted(key for _, key in gateway.rows.records)
        assert [key for key in keys if key.startswith("record/")] == ["record/fork"]
        assert len([key for key in keys if key.startswith("entry/")]) == 2, "the other messages are deleted"
        assert not [key for key in keys if key.startswith("part/")]
    expected = asyncio.run(story(InMemoryConversationStore(), large))
    assert plain(told[0]) == plain(expected)
    assert told[0][2][0][1].parts[0].content == large and told[0][2][1] == 2


def test_a_conversation_is_saved_with_the_turn_or_not_at_all() -> None:
    world = World()
    model = world.model("m", "one", "two", "three")
    agent = Agent(model, name="a", capabilities=[Durability[None]()])

    async def main(run: Run) -> None:
        store = RecordConversationStore(run)
        while run.next_turn <= 3:
            async with run.turn() as turn:
                conversation = await store.load("chat") or Conversation(conversation_id="chat")
                result = await agent.run(f"Question {turn.number}", conversation=conversation)
                await store.save(result)
                saved = await store.load("chat")
                assert saved is not None and len(saved.messages) == 2 * turn.number
                if turn.number == 3:
                    turn.finish(output=result.output)

    with new_gateway() as gateway:
        sent = run_to_end(gateway, main)
        expected = len(gateway.rows.records)
    assert expected == 7 and len(world.asked) == 3
    for point in [(number, side) for number in range(len(sent)) for side in ("before", "after")]:
        world.asked.clear()
        with new_gateway() as gateway:
            run_to_end(gateway, main, point)
            assert len(gateway.rows.records) == expected and gateway.finish, (point, sent[point[0]])
            assert gateway.finish["output"] == "three" and len(world.asked) <= 4, point


def test_a_model_that_is_named_is_built_once_for_an_agent_run_and_keeps_its_connections() -> None:
    """Pydantic AI builds one for each request, and closes its client: no connection would be used twice."""
    built: list[OpenAIChatModel] = []
    open_clients: list[list[Any]] = []

    def build(_: Any, name: str) -> Model:
        url = model.environment["OPENAI_BASE_URL"]
        built.append(OpenAIChatModel(name, provider=OpenAIProvider(base_url=url, api_key="none")))
        return built[-1]

    def clients() -> list[Any]:
        return [it.provider._own_http_client for it in built if it.provider is not None]

    def look(cents: int) -> str:
        open_clients.append([client for client in clients() if not client.is_closed])
        return "seen"

    capabilities = [Durability[None](tools={"look": "readOnly"}), ResolveModelId[None](build)]
    agent = Agent("gpt-5-mini", name="a", tools=[look], capabilities=capabilities)
    replies = [Reply(tool_calls=[ToolCall("look", {"cents": n})]) for n in range(3)]
    with new_gateway() as gateway, FakeOpenAI([*replies, Reply("done")]) as model:
        attempt(gateway, one_turn(agent))
        assert gateway.finish is not None and gateway.finish["output"] == "done"
        assert len(model.requests) == 4
    assert len(built) == 2, "Pydantic AI's own of the run, and the one that is asked"
    asked = built[1].provider
    assert asked is not None and all(asked._own_http_client in seen for seen in open_clients) and len(open_clients) == 3
    assert asked._own_http_client is not None and asked._own_http_client.is_closed
