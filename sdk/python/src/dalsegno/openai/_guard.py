"""`guard`: the calls of an agent's tools are calls of the run."""

from __future__ import annotations

import asyncio
import copy
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from agents import (
    Agent,
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    FunctionTool,
    Handoff,
    LocalShellTool,
    ModelBehaviorError,
    RunContextWrapper,
    ShellTool,
    Tool,
)
from agents.tool import maybe_invoke_function_tool_failure_error_function
from agents.tool_context import ToolContext

from dalsegno import _json
from dalsegno._agent_call import AgentCall, ask_probe, enclosing_call, inside, running
from dalsegno._errors import CallFailed, Error, KeyRefused
from dalsegno._ordinals import Slot
from dalsegno._shapes import is_array, is_object
from dalsegno._tools import Policy as CallPolicy
from dalsegno.aio import AsyncRun
from dalsegno.openai._link import Link, Stopped, digest, is_agent, link_of, name_part, scope
from dalsegno.openai._model import DurableModel

LOCAL_TOOLS = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool, ShellTool)
"""Tools that change something in this process, and that are no functions."""

C = TypeVar("C")

_key: ContextVar[str | None] = ContextVar("dalsegno_openai_key", default=None)


@dataclass(frozen=True, slots=True)
class Probe:
    """The policy `probe`, with the function that finds out whether a call took effect: `pay=Probe(find_payment)`.

    function: takes the tool's arguments by name, and `key` if it has such a parameter; it is a function or an `async
        def`. It returns the tool's result if the call took effect, and raises `CallFailed` if it did not.
    """

    function: Callable[..., Any]


Guarded: TypeAlias = Literal["retrySameKey", "readOnly", "ask"] | Probe
Policy: TypeAlias = Guarded | Literal["unguarded"]


def call_key() -> str:
    """The idempotency key of the tool call in which this is called: the same in each attempt, and in no other call.

    Errors: `LookupError` outside of a tool of a guarded agent.
    """
    key = _key.get()
    if key is None:
        raise LookupError("call_key() is called inside of a tool of an agent that `guard` has returned")
    return key


def guard(run: AsyncRun[Any], agent: Agent[C], **policies: Policy) -> Agent[C]:
    """Returns a copy of the agent whose model's answers and tool calls are stored in the run.

    policies: for each function tool, by its name, what to do if a process died during a call:
        `retrySameKey`: the tool runs again with the same `call_key()`, because what it calls honours the key.
        `readOnly`: the tool runs again, because it changes nothing.
        `Probe(function)`: the function finds out whether the call took effect.
        `ask`: the run is held until a person has found out.
        `unguarded`: the tool runs as without this package: perhaps twice.

    A call's id is `TURN.TOOL.ID`, with the vendor's id of the call, and in an agent that is a tool `TURN.TOOL.ID.HASH`, with
    a hash of the calls around it. A guarded tool may run a guarded agent itself: then the ids of that agent's calls end
    with `.in-HASH`, a hash of the id of the tool's call, and once that call is over, they are not made again.

    The agents in `handoffs` are guarded with the same policies. An agent that is a tool is guarded before:
    `guard(run, inner, …).as_tool(…)`; it has no policy itself. Tools of MCP servers have policies by their names too.
    Tools that the provider runs (`WebSearchTool` and others) are left alone: they are a part of the model's answer.

    What a tool returns is stored as the model gets it: a text, or the vendor's structured outputs. If a tool raises
    `CallFailed(words)`, nothing has changed, and the model gets the words, or those of the tool's own
    `failure_error_function`. An error of a `readOnly` tool becomes the vendor's words for it. After any other exception the
    outcome is unknown: `run_agent` raises it, and the model never has to guess.

    Errors: `ValueError` where a tool has no policy, a policy has no tool, an agent that is a tool is not guarded, or a
    tool cannot be guarded (a shell, a computer, a patch, a custom tool) and is not `unguarded`.
    """
    guarding = _Guarding(run, policies)
    guarded: Agent[C] = guarding.agent(agent)
    unknown = sorted(policies.keys() - guarding.used) if not guarding.has_mcp else []
    if unknown:
        raise ValueError(f"no tool has the name {unknown[0]!r}")
    return guarded


class _Guarding:
    """One call of `guard`: its policies, and the agents that it has copied."""

    def __init__(self, run: AsyncRun[Any], policies: Mapping[str, Policy]) -> None:
        self._run, self._link, self._policies = run, link_of(run), policies
        self._copies: dict[int, tuple[Agent[Any], Agent[Any]]] = {}
        self.used: set[str] = set()
        self.has_mcp = False

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        """The copy of an agent. Agents may hand off to each other in a circle."""
        if isinstance(agent.model, DurableModel):
            return agent
        if id(agent) in self._copies:
            return self._copies[id(agent)][1]
        model = DurableModel(self._run, agent.model, agent.name)
        tools = [self._tool(tool) for tool in agent.tools]
        copied = agent.clone(model=model, model_settings=agent.model_settings, tools=tools, handoffs=[])
        self._copies[id(agent)] = agent, copied
        copied.handoffs = [self._handoff(it) if isinstance(it, Handoff) else self.agent(it) for it in agent.handoffs]
        if agent.mcp_servers:
            self.has_mcp = True
            self._guard_mcp(copied)
        return copied

    def _handoff(self, handoff: Handoff[Any, Any]) -> Handoff[Any, Any]:
        copied = copy.copy(handoff)

        async def invoke(context: RunContextWrapper[Any], arguments: str) -> Any:
            return self.agent(await handoff.on_invoke_handoff(context, arguments))

        copied.on_invoke_handoff = invoke
        target = handoff._agent_ref() if handoff._agent_ref is not None else None
        if is_agent(target):
            copied._agent_ref = weakref.ref(self.agent(target))
        return copied

    def _guard_mcp(self, agent: Agent[Any]) -> None:
        """The tools of MCP servers are known when the agent runs."""
        find = agent.get_mcp_tools

        async def get_mcp_tools(run_context: RunContextWrapper[Any]) -> list[Tool]:
            tools = await find(run_context)
            try:
                return [self._tool(tool) for tool in tools]
            except ValueError as error:
                self._link.stop(error)
                raise

        object.__setattr__(agent, "get_mcp_tools", get_mcp_tools)

    def _tool(self, tool: Tool) -> Tool:
        name = tool.name
        policy = self._policies.get(name)
        self.used.add(name)
        if policy == "unguarded":
            return tool
        if not isinstance(tool, FunctionTool):
            if isinstance(tool, LOCAL_TOOLS):
                raise ValueError(f"the tool {name!r} cannot be guarded: it is no function. Only `unguarded` allows it")
            if policy is not None:
                raise ValueError(f"the tool {name!r} runs at the model's provider, so it has no policy")
            return tool
        if isinstance(tool.on_invoke_tool, (_GuardedTool, _NestedAgent)):
            return tool
        copied = copy.copy(tool)
        if tool._is_agent_tool:
            inner = tool._agent_instance
            if policy is not None or not isinstance(getattr(inner, "model", None), DurableModel):
                raise ValueError(f"the tool {name!r} is an agent: guard it before, guard(run, inner, …).as_tool(…)")
            copied.on_invoke_tool = _NestedAgent(self._link, tool)
        elif policy is None:
            raise ValueError(f"the tool {name!r} has no policy: {name}='readOnly' if it changes nothing, see guard")
        else:
            copied.on_invoke_tool = _GuardedTool(self._run, self._link, tool, policy)
        return copied


class _NestedAgent:
    """Invokes an agent that is a tool. Its own calls are stored; the tool's call is not."""

    def __init__(self, link: Link, tool: FunctionTool) -> None:
        self._link, self._tool = link, tool

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        token = scope.set(f"{scope.get()}/{context.tool_call_id}")
        try:
            result = await self._tool.on_invoke_tool(context, arguments)
        finally:
            scope.reset(token)
        self._link.check()
        return result


class _GuardedTool:
    """Invokes a function tool as a call of the run."""

    def __init__(self, run: AsyncRun[Any], link: Link, tool: FunctionTool, policy: Guarded) -> None:
        self._run, self._link, self._tool = run, link, tool
        self._name = name_part(tool.name, 40)
        self._probe = policy.function if isinstance(policy, Probe) else None
        self._policy: CallPolicy = "probe" if isinstance(policy, Probe) else policy
        # The vendor makes an exception a text for the model. Of an effect it must be seen.
        self._raising = copy.copy(tool)
        self._raising._failure_error_function = None
        self._raising._use_default_failure_error_function = False

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        self._link.check()
        try:
            return await self._invoke(context, arguments)
        except Stopped:
            raise
        except asyncio.CancelledError:
            if self._policy != "readOnly":
                self._link.stop(Error(f"a call of the tool {self._tool.name!r} was cancelled: its outcome is unknown"))
            raise
        except BaseException as error:
            self._link.stop(error)
            if isinstance(error, SystemExit):
                raise Stopped("the process leaves") from error
            raise

    async def _invoke(self, context: ToolContext[Any], text: str) -> Any:
        try:
            arguments: Any = json.loads(text) if text else {}
        except ValueError:
            arguments = None
        if not is_object(arguments):
            return await self._tool.on_invoke_tool(context, text)  # it says that this is no JSON, and runs nothing
        granted = self._link.granted.get(context.tool_call_id)
        if granted is not None and granted.changes:
            arguments = {**arguments, **granted.changes}
            text = json.dumps(arguments)
        id = f"{self._run.next_turn}.{self._name}.{_place(context.tool_call_id)}"
        approval = None if granted is None else granted.approval
        try:
            output = await self._call(id, arguments, approval, context, text)
        except CallFailed as failed:
            return await self._explain(context, failed)
        self._run.sync._spend(tool_calls=1)
        return output

    async def _call(
        self, id: str, arguments: dict[str, Any], approval: str | None, context: ToolContext[Any], text: str
    ) -> Any:
        """The tool's output, new or stored. Errors: as `Run.call`."""
        send = self._run._portal.call
        call = AgentCall(self._run.sync, Slot(id), self._name, self._policy, arguments, approval)
        begun = await call.claim(send, partial(self._ask, self._probe) if self._probe is not None else None)
        if begun is None:
            return call.result
        try:
            with running(begun):
                output = await self._run_tool(context, text, begun.key)
        except (CallFailed, KeyRefused) as refusal:
            await send(call.end, begun, refusal.outcome, refusal.result)
            raise
        await send(call.end, begun, "completed", output)
        return output

    async def _ask(self, probe: Callable[..., Any], call: Mapping[str, Any]) -> Any:
        """What the probe finds, as it is stored."""
        return _storable(self._tool, await ask_probe(probe, call))

    async def _run_tool(self, context: ToolContext[Any], text: str, key: str) -> Any:
        """The tool's output, as it is stored. Errors: whatever the tool raises."""
        token = _key.set(key)
        nested = scope.set(f"{scope.get()}/{context.tool_call_id}")
        try:
            if self._policy == "readOnly":
                output = await self._tool.on_invoke_tool(context, text)
            else:
                output = await self._raising.on_invoke_tool(context, text)
        except ModelBehaviorError as error:  # the arguments are not those of the function, so it has not run
            raise CallFailed(str(error)) from error
        finally:
            scope.reset(nested)
            _key.reset(token)
        self._link.check()
        return _storable(self._tool, output)

    async def _explain(self, context: ToolContext[Any], failed: CallFailed) -> str:
        """What the model gets to know of a call that changed nothing. Errors: `failed`, where the tool wants that."""
        if self._tool._use_default_failure_error_function and failed.result is not None:
            return str(failed)  # the vendor's own words say nothing of an exception, but these were meant to be read
        text: str | None = await maybe_invoke_function_tool_failure_error_function(
            function_tool=self._tool, context=context, error=failed
        )
        if text is None:
            raise failed
        return text


def _place(tool_call_id: str) -> str:
    """Which call of a tool it is, in the turn: the vendor's id, and in a nested agent also where that runs.

    Some providers count the calls of each answer, so two nested agents get the same ids.
    """
    around = scope.get()
    place = f"{name_part(tool_call_id, 50)}.{digest(around)}" if around else name_part(tool_call_id)
    return f"{place}{inside(enclosing_call())}"


def _storable(tool: FunctionTool, output: Any) -> Any:
    """An output as JSON that the vendor shows to the model as it would have shown the output itself."""
    items: Sequence[Any] = output if is_array(output) else [output]
    if tool.output_json_schema is not None or (items and all(_is_structured(item) for item in items)):
        return _json.copy(output)
    try:
        copied = _json.copy(output)
    except (TypeError, ValueError):
        return str(output)
    return copied if str(copied) == str(output) else str(output)


def _is_structured(output: Any) -> bool:
    """Whether the vendor sends it as a text, an image or a file."""
    kind = output.get("type") if is_object(output) else getattr(output, "type", None)
    return kind in ("text", "image", "file") and (isinstance(output, dict) or hasattr(output, "model_dump"))
