"""`guard`: agents that are tools, agents that hand off, and tools of MCP servers. In this process."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("agents.memory", reason="openai-agents is not installed: hack/adapters.sh runs these tests")

from agents import Agent, AgentsException, RunConfig, RunHooks, Runner, Usage, function_tool, handoff
from agents.mcp import MCPServer
from agents.testing import ScriptedModel, assistant_message, function_call

from dalsegno import CallFailed
from dalsegno.openai import Policy, guard, run_agent
from dalsegno.testing.memory import MemoryGateway
from openai_world import Asked, Run, attempt, gateway
from test_openai_guard import Till, model_that_pays, payer, outputs


def test_an_agent_that_is_a_tool_is_replayed_from_its_own_calls(gateway: MemoryGateway) -> None:
    outer = ScriptedModel(
        [[function_call("ask_payer", {"input": n}, call_id=n) for n in ("one", "two")], [assistant_message("done")]]
    )
    # Two nested runs at once: which of them asks first differs, so the script goes by the conversation.
    class ByInput(ScriptedModel):
        async def get_response(self, system_instructions: Any, input: Any, *more: Any, **named: Any) -> Any:
            first = input if isinstance(input, str) else input[0]["content"]
            paid = not isinstance(input, str) and any(item.get("type") == "function_call_output" for item in input)
            step = [assistant_message(f"{first} is paid")] if paid else [function_call("pay", {"cents": len(first)}, call_id=f"p-{first}")]
            self.enqueue(step)
            return await super().get_response(system_instructions, input, *more, **named)

    inner, till = ByInput(), Till(ConnectionError())

    async def work(run: Run) -> Any:
        nested = payer(run, inner, till, "retrySameKey").as_tool("ask_payer", "pays")
        agent = guard(run, Agent(name="outer", model=outer, tools=[nested]))
        return (await run_agent(run, agent, "go")).final_output

    with pytest.raises(ConnectionError):
        attempt(gateway, work)
    assert attempt(gateway, work) == "done"
    assert outputs(outer) == ["one is paid", "two is paid"]
    assert len(outer.calls) == 2
    assert {key.partition(":")[2].rpartition(".")[0] for key in till.keys} == {"1.pay.p-one", "1.pay.p-two"}
    assert len(inner.calls) <= 5, "four answers, and one that the first attempt may not have stored"


def test_calls_of_two_nested_agents_with_one_id_of_the_model_are_two_calls(gateway: MemoryGateway) -> None:
    """Some providers count the calls of each answer: `call_0` in both."""
    outer = ScriptedModel(
        [[function_call("ask_payer", {"input": n}, call_id=n) for n in ("one", "two")], [assistant_message("done")]]
    )
    till = Till()

    class Counting(ScriptedModel):
        async def get_response(self, system_instructions: Any, input: Any, *more: Any, **named: Any) -> Any:
            paid = not isinstance(input, str) and any(item.get("type") == "function_call_output" for item in input)
            self.enqueue([assistant_message("paid")] if paid else [function_call("pay", {"cents": 5}, call_id="call_0")])
            return await super().get_response(system_instructions, input, *more, **named)

    async def work(run: Run) -> Any:
        nested = payer(run, Counting(), till, "retrySameKey").as_tool("ask_payer", "pays")
        agent = guard(run, Agent(name="outer", model=outer, tools=[nested]))
        return (await run_agent(run, agent, "go")).final_output

    assert attempt(gateway, work) == "done"
    assert len({*till.keys}) == 2, "each of the two pays"


class DiesAfter(RunHooks[Any]):
    """Raises when a tool of this name has ended, the first time."""

    def __init__(self, name: str) -> None:
        self.name, self.has_died = name, False

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        if tool.name == self.name and not self.has_died:
            self.has_died = True
            raise Asked


TOKENS = Usage(input_tokens=7, output_tokens=3, total_tokens=10)


@pytest.mark.parametrize(("policy", "refuses"), [("retrySameKey", False), ("retrySameKey", True), ("readOnly", False)])
def test_a_guarded_tool_that_has_run_an_agent_is_answered_from_the_store(
    gateway: MemoryGateway, policy: Policy, refuses: bool
) -> None:
    """With a nested agent of its own. What they called and spent is not due again, and not lost."""
    outer = ScriptedModel(
        [[function_call("ask", {"question": "?"}, call_id="c1")], [assistant_message("done")]], default_usage=TOKENS
    )
    middle = ScriptedModel(
        [[function_call("pay", {"cents": 1}, call_id="m1"), function_call("clerk", {"input": "pay"}, call_id="m2")],
         [assistant_message("both are paid")]], default_usage=TOKENS
    )
    till, inner, dies = Till(), ScriptedModel(default_usage=TOKENS), DiesAfter("ask")
    inner.enqueue([function_call("pay", {"cents": 5}, call_id="c1")])
    inner.enqueue([assistant_message("paid")])

    async def work(run: Run) -> Any:
        clerk = payer(run, inner, till, "retrySameKey").as_tool("clerk", "pays")
        asked = guard(run, Agent(name="middle", model=middle, tools=[clerk, function_tool(till.pay)]), pay="retrySameKey")

        async def ask(question: str) -> str:
            answer: str = (await Runner.run(asked, question, run_config=RunConfig(tracing_disabled=True))).final_output
            if refuses:
                raise CallFailed(answer)
            return answer

        agent = guard(run, Agent(name="outer", model=outer, tools=[function_tool(ask)]), ask=policy)
        return (await run_agent(run, agent, "go", hooks=dies)).final_output

    with pytest.raises(AgentsException, match="Error running tool ask"):
        attempt(gateway, work)
    assert attempt(gateway, work) == "done"
    assert outputs(outer) == ["both are paid"]
    assert len({*till.keys}) == 2 == len(till.keys)
    assert (len(outer.calls), len(middle.calls), len(inner.calls)) == (2, 2, 2)
    assert gateway.rows.usage == {"tokensIn": 42, "tokensOut": 18, "toolCalls": 2 if refuses else 3}


def test_agents_that_hand_off_to_each_other_are_all_guarded(gateway: MemoryGateway) -> None:
    till = Till(ConnectionError())
    first = ScriptedModel([[function_call("transfer_to_cashier", {}, call_id="h1")]])
    second = model_that_pays()

    async def work(run: Run) -> Any:
        cashier = Agent(name="cashier", model=second, tools=[function_tool(till.pay)])
        desk = Agent(name="desk", model=first, handoffs=[handoff(cashier)])
        cashier.handoffs = [desk]
        guarded = guard(run, desk, pay="retrySameKey")
        return await run_agent(run, guarded, "go")

    with pytest.raises(ConnectionError):
        attempt(gateway, work)
    result = attempt(gateway, work)
    assert (result.final_output, result.last_agent) == ("done", "cashier")
    assert (len(first.calls), len(second.calls)) == (1, 2) and len(set(till.keys)) == 1


class Bank(MCPServer):
    """An MCP server with one tool."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    @property
    def name(self) -> str:
        return "bank"

    async def connect(self) -> None:
        pass

    async def cleanup(self) -> None:
        pass

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> Any:
        from mcp.types import Tool

        return [Tool(name="pay", input_schema={"type": "object", "properties": {"cents": {"type": "integer"}}})]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        from mcp.types import CallToolResult, TextContent

        self.calls.append(arguments)
        if len(self.calls) == 1:
            raise Asked
        return CallToolResult(content=[TextContent(type="text", text="paid by the server")])

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        raise NotImplementedError


def test_tools_of_an_mcp_server_have_policies(gateway: MemoryGateway) -> None:
    model, bank = model_that_pays(), Bank()

    def work(**policies: Policy) -> Any:
        async def agent(run: Run) -> Any:
            guarded = guard(run, Agent(name="payer", model=model, mcp_servers=[bank]), **policies)
            return (await run_agent(run, guarded, "go")).final_output

        return agent

    with pytest.raises(ValueError, match="'pay' has no policy"):
        attempt(gateway, work())
    with pytest.raises(AgentsException, match="Error invoking MCP tool pay"):
        attempt(gateway, work(pay="retrySameKey"))
    assert attempt(gateway, work(pay="retrySameKey")) == "done"
    assert bank.calls == [{"cents": 5}] * 2 and len(model.calls) == 2
