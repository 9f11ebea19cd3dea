"""`guard`: policies, ids and keys of tool calls, and what the model gets to know of failures. In this process."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any

import pytest

pytest.importorskip("agents.memory", reason="openai-agents is not installed: hack/adapters.sh runs these tests")

from agents import Agent, FunctionTool, LocalShellTool, ToolOutputImage, WebSearchTool, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from dalsegno import CallFailed, Diverged, KeyRefused, Uncertain, spent
from dalsegno.openai import DurableModel, Policy, Probe, call_key, guard, run_agent
from dalsegno.testing.memory import MemoryGateway
from openai_world import Asked, Run, attempt, calls, gateway, says


class Till:
    """A tool that counts its keys, and that fails as often as a test wants, after its effect."""

    def __init__(self, failure: Exception | None = None, before: bool = False) -> None:
        self.keys: list[str] = []
        self.failure = failure
        self.before = before

    def pay(self, cents: int) -> str:
        """Pays."""
        failure, self.failure = self.failure, None
        if failure is not None and self.before:
            raise failure
        self.keys.append(call_key())
        if failure is not None:
            raise failure
        return f"paid {cents}"


def model_that_pays(*more: Any) -> ScriptedModel:
    return ScriptedModel([[function_call("pay", {"cents": 5}, call_id="c1")], *more, [assistant_message("done")]])


def payer(run: Run, model: ScriptedModel, till: Till, policy: Policy, **options: Any) -> Agent[Any]:
    return guard(run, Agent(name="payer", model=model, tools=[function_tool(till.pay, **options)]), pay=policy)


def outputs(model: ScriptedModel) -> list[Any]:
    """The outputs of tools that the model was shown last."""
    assert model.last_call is not None
    return [item["output"] for item in model.last_call.input if isinstance(item, dict) and item.get("type") == "function_call_output"]


def test_a_tool_whose_outcome_is_unknown_runs_again_under_its_key_and_the_model_is_not_asked_again(
    gateway: MemoryGateway,
) -> None:
    model, till = model_that_pays(), Till(ConnectionError("the line is dead"))

    async def work(run: Run) -> Any:
        return (await run_agent(run, payer(run, model, till, "retrySameKey"), "go")).final_output

    with pytest.raises(ConnectionError, match="the line is dead"):
        attempt(gateway, work)
    assert [call.state for call in gateway.calls if call.id == "1.pay.c1"] == ["started"]
    assert attempt(gateway, work) == "done"
    assert len(till.keys) == 2 and len(set(till.keys)) == 1
    assert till.keys[0].endswith(":1.pay.c1")
    assert len(model.calls) == 2
    assert outputs(model) == ["paid 5"]


def test_a_tool_that_refused_is_over_and_the_model_gets_its_words(gateway: MemoryGateway) -> None:
    model, till = model_that_pays(), Till(CallFailed("no money"), before=True)

    async def work(run: Run) -> None:
        await run_agent(run, payer(run, model, till, "retrySameKey"), "go")

    attempt(gateway, work)
    assert [(call.state, call.result) for call in gateway.calls if call.id == "1.pay.c1"] == [("failed", "no money")]
    assert outputs(model) == ["no money"] and till.keys == []


def test_a_tool_without_a_failure_function_lets_its_refusal_fail_the_run(gateway: MemoryGateway) -> None:
    model, till = model_that_pays(), Till(CallFailed("no money"), before=True)

    async def work(run: Run) -> None:
        await run_agent(run, payer(run, model, till, "retrySameKey", failure_error_function=None), "go")

    for _ in range(2):
        with pytest.raises(CallFailed, match="no money"):
            attempt(gateway, work)
    assert len(model.calls) == 1


def test_a_key_that_was_refused_fails_the_run_and_is_no_word_for_the_model(gateway: MemoryGateway) -> None:
    model, till = model_that_pays(), Till(KeyRefused("the key belongs to someone else"), before=True)

    async def work(run: Run) -> None:
        await run_agent(run, payer(run, model, till, "retrySameKey"), "go")

    with pytest.raises(KeyRefused):
        attempt(gateway, work)
    gateway.end_attempt()
    assert len(model.calls) == 1 and "is held" in gateway.why_no_process


def test_an_error_of_a_tool_that_changes_nothing_is_stored_as_words_for_the_model(gateway: MemoryGateway) -> None:
    model, till = model_that_pays([function_call("stop", {}, call_id="c2")]), Till(ValueError("no such bill"), before=True)
    stops = iter([True, False])

    @function_tool
    def stop() -> str:
        if next(stops):
            raise Asked
        return "went on"

    async def work(run: Run) -> Any:
        pay = function_tool(till.pay, failure_error_function=lambda _, error: f"it said: {error}")
        agent = Agent(name="reader", model=model, tools=[pay, stop])
        return (await run_agent(run, guard(run, agent, pay="readOnly", stop="retrySameKey"), "go")).final_output

    with pytest.raises(Asked):
        attempt(gateway, work)
    assert attempt(gateway, work) == "done"
    assert outputs(model) == ["it said: no such bill", "went on"] and len(model.calls) == 3


def test_arguments_that_do_not_fit_are_no_call_that_took_effect(gateway: MemoryGateway) -> None:
    wrong = [[function_call("pay", {"cents": "many"}, call_id="c1")], [function_call("pay", "no JSON", call_id="c2")]]
    model, till = ScriptedModel([*wrong, [assistant_message("done")]]), Till()

    async def work(run: Run) -> None:
        await run_agent(run, payer(run, model, till, "ask"), "go")

    attempt(gateway, work)
    assert till.keys == [] and len(outputs(model)) == 2
    assert [(call.id, call.state) for call in gateway.calls if call.policy == "ask"] == [("1.pay.c1", "failed")]


def test_a_probe_finds_the_effect_and_the_tool_does_not_run_again(gateway: MemoryGateway) -> None:
    model, till, asked = model_that_pays(), Till(ConnectionError()), []

    def find(cents: int, key: str) -> str:
        asked.append((cents, key))
        return f"found {cents}"

    async def work(run: Run) -> None:
        await run_agent(run, payer(run, model, till, Probe(find)), "go")

    with pytest.raises(ConnectionError):
        attempt(gateway, work)
    attempt(gateway, work)
    assert asked == [(5, till.keys[0])] and len(till.keys) == 1
    assert outputs(model) == ["found 5"]


def test_a_probe_with_parameters_of_any_name_runs_apart_from_the_requests(gateway: MemoryGateway) -> None:
    model, threads = ScriptedModel([calls("look", function="f"), says()]), []

    def look(function: str) -> str:
        raise ConnectionError

    def find(function: str) -> str:
        threads.append(threading.current_thread())
        return f"found {function}"

    async def work(run: Run) -> None:
        agent = Agent(name="reader", model=model, tools=[function_tool(look)])
        threads.append(await run._portal.call(threading.current_thread))
        await run_agent(run, guard(run, agent, look=Probe(find)), "go")

    with pytest.raises(ConnectionError):
        attempt(gateway, work)
    threads.clear()
    attempt(gateway, work)
    assert outputs(model) == ["found f"]
    of_requests, of_probe = threads
    assert of_probe not in (of_requests, threading.main_thread())


def test_a_probe_finds_no_effect_and_the_tool_runs_under_the_same_key(gateway: MemoryGateway) -> None:
    model, till = model_that_pays(), Till(ConnectionError(), before=True)

    async def find(cents: int) -> str:
        raise CallFailed

    async def work(run: Run) -> None:
        await run_agent(run, payer(run, model, till, Probe(find)), "go")

    with pytest.raises(ConnectionError):
        attempt(gateway, work)
    attempt(gateway, work)
    assert [key.partition(":")[2] for key in till.keys] == ["1.pay.c1"]
    assert [call.state for call in gateway.calls if call.policy == "probe"] == ["completed"]
    assert outputs(model) == ["paid 5"]


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_tool_says_that_it_has_spent_counts_with_its_call(gateway: MemoryGateway, is_async: bool) -> None:
    def pay(cents: int) -> str:
        spent(cost_micro_usd=7)
        return "paid"

    async def apay(cents: int) -> str:
        return pay(cents)

    async def work(run: Run) -> None:
        tool = function_tool(apay if is_async else pay, name_override="pay")
        agent = Agent(name="payer", model=model_that_pays(), tools=[tool])
        await run_agent(run, guard(run, agent, pay="ask"), "go")

    attempt(gateway, work)
    assert [(call.state, call.tool) for call in gateway.calls if call.policy == "ask"] == [("completed", "pay")]
    assert gateway.rows.usage == {"toolCalls": 1, "costMicroUSD": 7}


def test_a_tool_that_runs_after_its_probe_counts_what_it_spent(gateway: MemoryGateway) -> None:
    model, till = model_that_pays(), Till(ConnectionError(), before=True)

    def pay(cents: int) -> str:
        spent(cost_micro_usd=7)
        return till.pay(cents)

    def find(cents: int) -> str:
        raise CallFailed

    async def work(run: Run) -> None:
        agent = Agent(name="payer", model=model, tools=[function_tool(pay)])
        await run_agent(run, guard(run, agent, pay=Probe(find)), "go")

    with pytest.raises(ConnectionError):
        attempt(gateway, work)
    attempt(gateway, work)
    assert outputs(model) == ["paid 5"] and gateway.rows.usage == {"toolCalls": 1, "costMicroUSD": 7}


def test_an_uncertain_call_holds_the_run_until_a_person_settles_it(gateway: MemoryGateway) -> None:
    model, till = model_that_pays(), Till(ConnectionError())

    async def work(run: Run) -> None:
        await run_agent(run, payer(run, model, till, "ask"), "go")

    with pytest.raises(ConnectionError):
        attempt(gateway, work)
    gateway.end_attempt()
    assert gateway.why_no_process == "it is held: the outcome of the call 1.pay.c1 is unknown"
    gateway.settle("1.pay.c1", "completed", result="paid, says the bank")
    attempt(gateway, work)
    assert len(till.keys) == 1 and outputs(model) == ["paid, says the bank"]


def test_an_uncertain_call_leaves_the_loop_and_is_no_word_for_the_model(gateway: MemoryGateway) -> None:
    model, till = model_that_pays(), Till(ConnectionError())

    async def work(run: Run) -> None:
        agent = payer(run, model, till, "ask")
        with pytest.raises(ConnectionError):
            await run_agent(run, agent, "go")
        await run_agent(run, agent, "go")  # the same process tries again, and nobody has settled the call

    with pytest.raises(Uncertain):
        attempt(gateway, work)
    assert len(till.keys) == 1 and len(model.calls) == 1


def test_a_tool_with_an_effect_that_is_cancelled_by_its_timeout_fails_the_run(gateway: MemoryGateway) -> None:
    slow = [True, False]
    timeouts = [0.2, 60.0]

    async def pay(cents: int) -> str:
        if slow.pop(0):
            await asyncio.sleep(5)
        return f"paid {cents}"

    model = model_that_pays()

    async def work(run: Run) -> Any:
        tool = function_tool(timeout=timeouts.pop(0))(pay)
        agent = guard(run, Agent(name="payer", model=model, tools=[tool]), pay="retrySameKey")
        return (await run_agent(run, agent, "go")).final_output

    with pytest.raises(Exception, match="was cancelled: its outcome is unknown"):
        attempt(gateway, work)
    assert attempt(gateway, work) == "done" and outputs(model) == ["paid 5"] and len(model.calls) == 2


def test_what_a_tool_returns_is_shown_to_the_model_as_without_the_guard(gateway: MemoryGateway) -> None:
    @dataclasses.dataclass
    class Receipt:
        cents: int

    shown: list[Any] = [
        "text", 5, None, True, {"a": [1, None]}, ["x"], ("x", "y"), Receipt(5), {1: 2},
        ToolOutputImage(image_url="https://example.org/a.png"), [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}],
    ]  # fmt: skip

    @function_tool
    def show(number: int) -> Any:
        return shown[number]

    calls = [function_call("show", {"number": number}, call_id=f"c{number}") for number in range(len(shown))]

    def model() -> ScriptedModel:
        return ScriptedModel([calls, [assistant_message("done")]])

    async def work(run: Run) -> list[list[Any]]:
        scripts = []
        for policy in ("readOnly", "unguarded"):
            script = model()
            agent = Agent(name=policy, model=script, tools=[show])
            await run_agent(run, guard(run, agent, show=policy), "go", id=policy)
            scripts.append(script)
        return [outputs(script) for script in scripts]

    guarded, plain = attempt(gateway, work)
    assert guarded == plain and len(plain) == len(shown)


def test_calls_of_one_turn_run_side_by_side(gateway: MemoryGateway) -> None:
    both: list[str] = []

    @function_tool
    async def meet(name: str) -> str:
        both.append(name)
        while len(both) < 2:
            await asyncio.sleep(0.01)
        return name

    calls = [function_call("meet", {"name": name}, call_id=name) for name in ("a", "b")]
    model = ScriptedModel([calls, [assistant_message("done")]])

    async def work(run: Run) -> None:
        await run_agent(run, guard(run, Agent(name="a", model=model, tools=[meet]), meet="retrySameKey"), "go")

    attempt(gateway, work)
    assert outputs(model) == ["a", "b"] and {call.id for call in gateway.calls} >= {"1.meet.a", "1.meet.b"}


def test_ids_that_do_not_fit_are_hashed(gateway: MemoryGateway) -> None:
    model = ScriptedModel([[function_call("pay", {"cents": 1}, call_id="a b/" + "x" * 200)], [assistant_message("done")]])

    async def work(run: Run) -> None:
        await run_agent(run, payer(run, model, Till(), "retrySameKey"), "go")

    attempt(gateway, work)
    (id,) = [call.id for call in gateway.calls if call.policy == "retrySameKey"]
    assert id.startswith("1.pay.a-b-xxx") and len(id) == len("1.pay.") + 64


def test_a_guard_that_would_leave_something_out_is_refused(gateway: MemoryGateway) -> None:
    pay = function_tool(Till().pay)
    inner = Agent(name="inner")
    shell = LocalShellTool(executor=lambda _: "")

    async def work(run: Run) -> None:
        refused: list[tuple[dict[str, Any], dict[str, Policy], str]] = [
            ({"tools": [pay]}, {}, "'pay' has no policy"),
            ({"tools": [pay]}, {"pay": "readOnly", "pya": "readOnly"}, "no tool has the name 'pya'"),
            ({"tools": [inner.as_tool("inner", "")]}, {}, "guard it before"),
            ({"tools": [shell]}, {"local_shell": "ask"}, "Only `unguarded` allows it"),
            ({"tools": [WebSearchTool()]}, {"web_search": "ask"}, "runs at the model's provider"),
        ]
        for options, policies, message in refused:
            with pytest.raises(ValueError, match=message):
                guard(run, Agent(name="a", **options), **policies)
        with pytest.raises(ValueError, match="an agent that guard has returned"):
            await run_agent(run, Agent(name="a"), "go")
        guarded = guard(run, Agent(name="a", tools=[pay, shell, WebSearchTool()]), pay="readOnly", local_shell="unguarded")
        assert guarded.tools[1] is shell and isinstance(guarded.model, DurableModel)
        assert guard(run, guarded) is guarded
        await run.finish()

    attempt(gateway, work)


def test_the_agent_that_was_given_is_not_changed(gateway: MemoryGateway) -> None:
    tool = function_tool(Till().pay)
    agent = Agent(name="a", model="some-model", tools=[tool])
    invoke = tool.on_invoke_tool

    async def work(run: Run) -> None:
        guarded = guard(run, agent, pay="readOnly")
        assert guarded.model_settings == agent.model_settings
        copied = guarded.tools[0]
        assert isinstance(copied, FunctionTool) and copied.on_invoke_tool is not invoke
        await run.finish()

    attempt(gateway, work)
    assert agent.model == "some-model" and agent.tools == [tool] and tool.on_invoke_tool is invoke


def test_a_key_is_known_in_a_tool_only() -> None:
    with pytest.raises(LookupError, match="inside of a tool"):
        call_key()


def test_another_answer_to_the_same_question_is_no_reason_to_pay_twice(gateway: MemoryGateway) -> None:
    """An agent that changes between two attempts may not ask for the call that was made. The turn then fails."""
    till = Till(ConnectionError())
    model = model_that_pays()

    async def work(run: Run) -> None:
        await run_agent(run, payer(run, model, till, "retrySameKey"), "go")

    async def other(run: Run) -> None:
        agent = Agent(name="another", model=ScriptedModel([[assistant_message("nothing to pay")]]))
        await run_agent(run, guard(run, agent), "go")

    with pytest.raises(ConnectionError):
        attempt(gateway, work)
    with pytest.raises(Diverged, match="1.pay.c1"):
        attempt(gateway, other)
    attempt(gateway, work)
    assert len(set(till.keys)) == 1
