"""What a session refuses when it is made."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk")

from claude_agent_sdk import ClaudeAgentOptions, McpServerConfig, ToolAnnotations, create_sdk_mcp_server, tool

from claude_context import LOOK, PAY, Bank, answer, attempt
from dalsegno.aio import AsyncRun
from dalsegno.claude import Session, call_key
from dalsegno.testing.memory import MemoryGateway

POLICIES: Any = {PAY: "retrySameKey", LOOK: "readOnly"}


def refusal(**more: Any) -> str:
    """Why a session is refused."""
    given = {"tools": Bank().tools, "policies": POLICIES, "options": ClaudeAgentOptions(), **more}

    async def work(run: AsyncRun[Any]) -> str:
        try:
            Session(run, given.pop("options"), **given)
        except ValueError as error:
            return str(error)
        finally:
            await run.finish()
        return ""

    with MemoryGateway() as gateway:
        return str(attempt(gateway, work))


def test_tools_and_policies_have_to_fit_together() -> None:
    assert refusal() == ""
    assert "needs a policy" in refusal(policies={LOOK: "readOnly"})
    assert "there is no tool 'pay'" in refusal(policies={**POLICIES, "pay": "ask"})
    assert "has a probe" in refusal(policies={**POLICIES, PAY: "probe"})
    assert "no tool of this process" in refusal(approve=["Bash"])


def test_a_tool_that_calls_itself_read_only_has_that_policy() -> None:
    @tool("pay", "Pays.", {}, annotations=ToolAnnotations(readOnlyHint=True))
    async def pay(args: Any) -> Any:
        return {"content": []}

    assert "readOnlyHint" in refusal(tools={"bank": [pay]}, policies={PAY: "retrySameKey"})
    assert refusal(tools={"bank": [pay]}, policies={PAY: "readOnly"}) == ""


def test_the_session_sets_where_the_conversation_is_stored() -> None:
    others: list[dict[str, Any]] = [{"resume": "x"}, {"session_id": "x"}, {"continue_conversation": True}, {"fork_session": True}]
    for more in others:
        assert "options." in refusal(options=ClaudeAgentOptions(**more))
    server: dict[str, McpServerConfig] = {"bank": create_sdk_mcp_server("bank", tools=[])}
    assert "Session(tools=" in refusal(options=ClaudeAgentOptions(mcp_servers=server))
    assert "two servers" in refusal(options=ClaudeAgentOptions(mcp_servers={"bank": {"type": "http", "url": "http://x"}}))
    assert "is a file" in refusal(options=ClaudeAgentOptions(mcp_servers="servers.json"))


def test_a_key_is_there_in_a_tool_only() -> None:
    with pytest.raises(LookupError):
        call_key()


def test_a_prompt_is_not_sent_inside_of_a_turn() -> None:
    async def work(run: AsyncRun[Any]) -> Any:
        of = Session(run, ClaudeAgentOptions(), tools=Bank().tools, policies=POLICIES)
        async with run.turn():
            return await answer(run, of)

    with MemoryGateway() as gateway:
        assert "outside of `run.turn()`" in str(attempt(gateway, work))
