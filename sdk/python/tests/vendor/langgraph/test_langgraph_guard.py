"""Calls of tools: one key, one effect, and no error that makes a model try again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage
from langchain_core.messages.tool import ToolCall as LangChainCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool, ToolException, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.types import Command, interrupt

import dalsegno
from dalsegno import aio
from dalsegno.langgraph import Key, arun_graph, guard, run_graph
from dalsegno.testing.memory import MemoryGateway
from langgraph_attempts import Attempts, Crash, agent, call, told


QUESTION = {"messages": [("user", "pay Ann")]}


DONE = AIMessage("done")


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempts]:
    with MemoryGateway() as gateway:
        yield Attempts(gateway, monkeypatch)


def test_a_tool_that_has_ended_is_answered_from_the_store_under_the_id_of_the_model(attempts: Attempts) -> None:
    keys: list[str] = []

    @tool
    def pay(cents: int, key: Key = "") -> str:
        """Pays."""
        keys.append(key)
        return f"paid {cents}"

    for expected in ("crash", "end"):
        with attempts.attempt() as run:
            graph = agent(run, [pay], [call("pay", cents=5), DONE], wrap_tool_call=guard(run, pay="retrySameKey"))
            if expected == "crash":
                # The call is over, and nothing of its step is stored.
                graph.checkpointer.session.threads.put_writes = fail_after(
                    3, graph.checkpointer.session.threads.put_writes
                )
                with pytest.raises(Crash):
                    run_graph(run, graph, QUESTION)
                raise Crash
            state = run_graph(run, graph, QUESTION)
            run.finish()
    (stored,) = attempts.gateway.calls
    assert keys == [stored.key], "the tool ran once"
    assert stored.id.startswith("lg.pay.c1.") and stored.arguments == {"cents": 5}
    assert stored.result == {"toolMessage": {"content": "paid 5", "status": "success"}}
    assert told(state) == ["paid 5"]


def test_a_tool_of_the_package_is_refused_in_a_guarded_tool(attempts: Attempts) -> None:
    @dalsegno.tool(policy="retrySameKey")
    def book(cents: int) -> str:
        raise AssertionError

    @tool
    def pay(cents: int) -> str:
        """Pays."""
        with pytest.raises(dalsegno.Error, match="'book' is called inside of a step or of another tool"):
            book(cents)
        return "refused"

    with attempts.attempt() as run:
        graph = agent(run, [pay], [call("pay", cents=5), DONE], wrap_tool_call=guard(run, pay="ask"))
        assert told(run_graph(run, graph, QUESTION)) == ["refused"]
        run.finish()
    assert [stored.tool for stored in attempts.gateway.calls] == ["pay"]


def fail_after(times: int, function: Any) -> Any:
    """The function, which is killed when it is called so many times."""
    left = [times]

    def wrapper(*args: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Crash
        return function(*args)

    return wrapper


def test_the_model_cannot_choose_the_key_and_does_not_see_it(attempts: Attempts) -> None:
    keys: list[str] = []

    @tool
    def pay(cents: int, key: Key = "") -> str:
        """Pays."""
        keys.append(key)
        return "paid"

    assert "key" not in str(convert_to_openai_tool(pay))
    with attempts.attempt() as run:
        forged = call("pay", cents=5, key="forged")
        run_graph(run, agent(run, [pay], [forged, DONE], wrap_tool_call=guard(run, pay="retrySameKey")), QUESTION)
        run.finish()
    assert keys == [attempts.gateway.calls[0].key] and keys != ["forged"]


@pytest.mark.parametrize("error", [OSError("timeout"), ToolException("timeout"), ValueError("timeout")])
def test_an_error_of_a_tool_with_an_effect_ends_the_graph_and_never_reaches_the_model(
    attempts: Attempts, error: Exception
) -> None:
    keys: list[str] = []

    @tool
    def pay(cents: int, key: Key = "") -> str:
        """Pays."""
        keys.append(key)
        if len(keys) == 1:
            raise error
        return "paid"

    pay.handle_tool_error = True
    for number in (1, 2):
        with attempts.attempt() as run:
            options: dict[str, Any] = {"handle_tool_errors": True, "wrap_tool_call": guard(run, pay="retrySameKey")}
            graph = agent(run, [pay], [call("pay", cents=5), DONE], **options)
            if number == 1:
                with pytest.raises(type(error), match="timeout"):
                    run_graph(run, graph, QUESTION)
                assert attempts.gateway.calls[0].state == "started"
                raise Crash
            state = run_graph(run, graph, QUESTION)
            run.finish()
    assert told(state) == ["paid"]
    assert len(keys) == 2 and len({*keys}) == 1


@pytest.mark.parametrize("handled", [True, False])
def test_an_answer_that_langgraph_cannot_use_ends_the_graph_because_the_tool_ran(
    attempts: Attempts, handled: bool
) -> None:
    @tool(response_format="content_and_artifact")
    def pay(cents: int) -> Any:
        """Pays."""
        return "not a pair of content and artifact"

    with attempts.attempt() as run:
        options: dict[str, Any] = {"handle_tool_errors": handled, "wrap_tool_call": guard(run, pay="retrySameKey")}
        with pytest.raises(dalsegno.Error if handled else ValueError, match="two-tuple"):
            run_graph(run, agent(run, [pay], [call("pay", cents=5), DONE], **options), QUESTION)
        raise Crash
    assert [stored.state for stored in attempts.gateway.calls] == ["started"]


def test_a_call_that_a_person_has_settled_has_an_answer(attempts: Attempts) -> None:
    @tool
    def pay(cents: int) -> str:
        """Pays."""
        raise Crash

    for number in (1, 2):
        with attempts.attempt() as run:
            graph = agent(run, [pay], [call("pay", cents=5), DONE], wrap_tool_call=guard(run, pay="ask"))
            state = run_graph(run, graph, QUESTION)
            run.finish()
        if number == 1:
            assert "is held" in attempts.gateway.why_no_process
            attempts.gateway.settle(attempts.gateway.calls[0].id, "completed")
    assert told(state) == ["done"]


def test_a_refusal_is_stored_and_the_model_is_told_in_each_attempt(attempts: Attempts) -> None:
    ran: list[int] = []

    @tool
    def pay(cents: int) -> str:
        """Pays."""
        ran.append(cents)
        raise dalsegno.CallFailed("the account is empty")

    for number in (1, 2):
        with attempts.attempt() as run:
            graph = agent(run, [pay], [call("pay", cents=5), DONE], wrap_tool_call=guard(run, pay="ask"))
            if number == 1:
                graph.checkpointer.session.threads.put_writes = fail_after(
                    3, graph.checkpointer.session.threads.put_writes
                )
                with pytest.raises(Crash):
                    run_graph(run, graph, QUESTION)
                raise Crash
            state = run_graph(run, graph, QUESTION)
            run.finish()
    assert told(state) == ["Error: the account is empty"] and ran == [5]
    (stored,) = attempts.gateway.calls
    assert (stored.state, stored.result) == ("failed", "the account is empty")


def test_arguments_that_do_not_fit_are_told_to_the_model_and_the_tool_does_not_run(attempts: Attempts) -> None:
    @tool
    def pay(cents: int) -> str:
        """Pays."""
        raise AssertionError("it must not run")

    with attempts.attempt() as run:
        graph = agent(run, [pay], [call("pay", cents="many"), DONE], wrap_tool_call=guard(run, pay="ask"))
        (said,) = told(run_graph(run, graph, QUESTION))
        run.finish()
    assert said.startswith("Error invoking tool 'pay'")
    assert [stored.state for stored in attempts.gateway.calls] == ["failed"]


def test_a_tool_that_the_model_made_up_is_no_call(attempts: Attempts) -> None:
    @tool
    def pay(cents: int) -> str:
        """Pays."""
        return "paid"

    with attempts.attempt() as run:
        graph = agent(run, [pay], [call("steal"), DONE], wrap_tool_call=guard(run, pay="ask"))
        (said,) = told(run_graph(run, graph, QUESTION))
        run.finish()
    assert "steal is not a valid tool" in said and attempts.gateway.calls == []


def test_an_error_of_a_tool_that_changes_nothing_is_for_langgraphs_handler(attempts: Attempts) -> None:
    @tool
    def look(order: str) -> str:
        """Looks."""
        raise OSError("no such order")

    with attempts.attempt() as run:
        options: dict[str, Any] = {"handle_tool_errors": True, "wrap_tool_call": guard(run, look="readOnly")}
        state = run_graph(run, agent(run, [look], [call("look", order="A-1"), DONE], **options), QUESTION)
        run.finish()
    assert "no such order" in told(state)[0]


def test_a_tool_without_a_policy_ends_the_graph(attempts: Attempts) -> None:
    @tool
    def pay(cents: int) -> str:
        """Pays."""
        raise AssertionError("it must not run")

    with attempts.attempt() as run:
        options: dict[str, Any] = {"handle_tool_errors": True, "wrap_tool_call": guard(run)}
        with pytest.raises(dalsegno.Error, match="has no policy"):
            run_graph(run, agent(run, [pay], [call("pay", cents=1), DONE], **options), QUESTION)
        raise Crash


def test_a_refused_key_ends_the_graph_and_holds_the_run(attempts: Attempts) -> None:
    @tool
    def pay(cents: int) -> str:
        """Pays."""
        raise dalsegno.KeyRefused("known from another request")

    with attempts.attempt() as run:
        options: dict[str, Any] = {"handle_tool_errors": True, "wrap_tool_call": guard(run, pay="retrySameKey")}
        with pytest.raises(dalsegno.KeyRefused):
            run_graph(run, agent(run, [pay], [call("pay", cents=5), DONE], **options), QUESTION)
        raise Crash
    assert "is held" in attempts.gateway.why_no_process


def test_two_calls_with_one_id_of_the_model_are_two_calls(attempts: Attempts) -> None:
    paid: list[int] = []

    @tool
    def pay(cents: int) -> str:
        """Pays."""
        paid.append(cents)
        return f"paid {cents}"

    with attempts.attempt() as run:
        replies = [call("pay", id="0", cents=5), call("pay", id="0", cents=5), DONE]
        state = run_graph(run, agent(run, [pay], replies, wrap_tool_call=guard(run, pay="retrySameKey")), QUESTION)
        run.finish()
    assert told(state) == ["paid 5", "paid 5"] and paid == [5, 5]


@pytest.mark.parametrize("policy", ["retrySameKey", "ask"])
def test_a_tool_may_interrupt_before_its_effect(attempts: Attempts, policy: Any) -> None:
    @tool
    def pay(cents: int) -> str:
        """Pays."""
        answer = interrupt(f"Pay {cents} cents?")
        return f"paid, as {answer['by']} has allowed"

    for number in (1, 2):
        with attempts.attempt() as run:
            graph = agent(run, [pay], [call("pay", cents=5), DONE], wrap_tool_call=guard(run, pay=policy))
            if number == 1:
                with pytest.raises(dalsegno.Parked):
                    run_graph(run, graph, QUESTION)
            else:
                state = run_graph(run, graph, QUESTION)
                run.finish()
        for id in attempts.gateway.open_waits:
            attempts.gateway.approve(id)
    assert told(state) == ["paid, as ann has allowed"]


def test_a_command_and_an_artifact_come_back_from_the_store(attempts: Attempts) -> None:
    ran: list[str] = []

    @tool
    def move(to: str) -> Any:
        """Moves."""
        ran.append(to)
        return Command(update={"messages": [f"moved to {to}"]}, goto="think")

    @tool(response_format="content_and_artifact")
    def draw(what: str) -> Any:
        """Draws."""
        ran.append(what)
        return "drawn", {"bytes": b"\x00\x01", "of": what}

    with attempts.attempt() as run:
        wrapper = guard(run, move="retrySameKey", draw="retrySameKey")
        for wanted in (draw.invoke, None):
            del wanted
        first = [stored_answer(wrapper, draw, "draw", what="a crane") for _ in range(2)]
        second = [stored_answer(wrapper, move, "move", to="north") for _ in range(2)]
        raise Crash
    assert ran == ["a crane", "north"], "each ran once"
    assert first[0].artifact == first[1].artifact == {"bytes": b"\x00\x01", "of": "a crane"}
    assert second[0] == second[1]


def stored_answer(wrapper: Any, tool: Any, name: str, **arguments: Any) -> Any:
    """What a call is answered, at first by the tool and then by the store."""
    from langgraph.prebuilt.tool_node import ToolCallRequest, ToolRuntime

    config: RunnableConfig = {"configurable": {"checkpoint_ns": "tools:1"}}
    ignore: Any = None
    runtime: ToolRuntime[Any, Any] = ToolRuntime(
        state={}, context=None, config=config, stream_writer=ignore, tool_call_id="c1", store=None
    )
    made: LangChainCall = {"name": name, "args": arguments, "id": "c1", "type": "tool_call"}
    return wrapper(ToolCallRequest(made, tool, {}, runtime), lambda request: request.tool.invoke(request.tool_call))


def test_an_asynchronous_tool_is_guarded_too(attempts: Attempts) -> None:
    keys: list[str] = []

    @tool
    async def pay(cents: int, key: Key = "") -> str:
        """Pays."""
        await asyncio.sleep(0)
        keys.append(key)
        if len(keys) == 1:
            raise Crash
        return "paid"

    async def run_once(run: Any) -> Any:
        wrapper = guard(run, pay="retrySameKey")
        node: dict[str, Any] = {"wrap_tool_call": wrapper, "awrap_tool_call": wrapper}
        graph = agent(run, [pay], [call("pay", cents=5), DONE], **node)
        return await arun_graph(aio.AsyncRun(run), graph, QUESTION)

    for number in (1, 2):
        with attempts.attempt() as run:
            if number == 1:
                with pytest.raises(Crash):
                    asyncio.run(run_once(run))
                raise Crash
            state = asyncio.run(run_once(run))
            run.finish()
    assert told(state) == ["paid"] and len(keys) == 2 and len({*keys}) == 1


def test_an_error_of_an_asynchronous_tool_ends_the_graph_too(attempts: Attempts) -> None:
    @tool
    async def pay(cents: int) -> str:
        """Pays."""
        raise OSError("timeout")

    async def run_once(run: Any) -> Any:
        wrapper = guard(run, pay="retrySameKey")
        node: dict[str, Any] = {"wrap_tool_call": wrapper, "awrap_tool_call": wrapper, "handle_tool_errors": True}
        graph = agent(run, [pay], [call("pay", cents=5), DONE], **node)
        return await arun_graph(aio.AsyncRun(run), graph, QUESTION)

    with attempts.attempt() as run:
        with pytest.raises(OSError, match="timeout"):
            asyncio.run(run_once(run))
        raise Crash
    assert [stored.state for stored in attempts.gateway.calls] == ["started"]


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_tool_says_that_it_has_spent_counts_with_its_call(attempts: Attempts, is_async: bool) -> None:
    def pay(cents: int) -> str:
        dalsegno.spent(cost_micro_usd=7)
        return "paid"

    async def apay(cents: int) -> str:
        return pay(cents)

    spending = StructuredTool.from_function(None if is_async else pay, apay if is_async else None, "pay", "Pays.")

    def run_once(run: Any) -> Any:
        wrapper = guard(run, pay="ask")
        node: dict[str, Any] = {"wrap_tool_call": wrapper, "awrap_tool_call": wrapper}
        graph = agent(run, [spending], [call("pay", cents=5), DONE], **node)
        if is_async:
            return asyncio.run(arun_graph(aio.AsyncRun(run), graph, QUESTION))
        return run_graph(run, graph, QUESTION)

    with attempts.attempt() as run:
        run_once(run)
        run.finish()
    (stored,) = attempts.gateway.calls
    assert (stored.state, stored.tool) == ("completed", "pay")
    assert attempts.gateway.rows.usage == {"toolCalls": 1, "costMicroUSD": 7}


def test_what_a_tool_spends_inside_of_another_call_counts_for_the_tool(attempts: Attempts) -> None:
    @tool
    def pay(cents: int) -> str:
        """Pays."""
        dalsegno.spent(cost_micro_usd=7)
        counted.append(dict(attempts.gateway.rows.usage))
        return "paid"

    counted: list[Any] = []
    with attempts.attempt() as run:
        graph = agent(run, [pay], [call("pay", cents=5), DONE], wrap_tool_call=guard(run, pay="ask"))
        outer = run._calls.begin("outer", "readOnly", None, None, None)
        with outer.running():
            run_graph(run, graph, QUESTION)
        counted.append(dict(attempts.gateway.rows.usage))
        run._calls.end(outer, "completed", None)
        assert outer.usage == {}
        run.finish()
    assert [it.get("costMicroUSD", 0) for it in counted] == [0, 7]
