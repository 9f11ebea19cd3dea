"""`Durability`: the capability that makes an agent's runs parts of a turn."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, Literal

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.capabilities.abstract import WrapModelRequestHandler, WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
    external_event_scope,
    replay_scope,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.providers import Provider
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from dalsegno._agent_call import enclosing_call
from dalsegno._tools import Policy, Tool, framework_probes
from dalsegno.pydantic_ai import _waits
from dalsegno.pydantic_ai._journal import (
    READ_ONLY,
    CallPolicy,
    Journal,
    Probe,
    clean,
    open_run,
    recorded,
)

RUN_IDS = uuid.UUID("5d6f3d44-5a86-4f41-9a5e-2b6d9a7f1c10")
"""The namespace of the default ids of agent runs. It never changes: a replay makes the same ids."""

POLICIES = ("retrySameKey", "readOnly", "ask")

_named_models: ContextVar[_NamedModels | None] = ContextVar("dalsegno_pydantic_ai_models", default=None)
"""The models that the agent run around has by their names."""


class Durability(BaseDurabilityCapability[AgentDepsT]):
    """Makes the runs of an agent durable: `Agent(…, capabilities=[Durability(tools={"pay": "retrySameKey"})])`.

    The agent runs inside of `run.turn()`. Each model request and each tool call is a call of the turn: it is stored, and
    if the process dies, the next attempt runs the agent again and gets what is stored. So the model is not asked
    again, and no tool runs again that is over.

    tools: by the name of each tool what happens if a process died during a call: `retrySameKey`, `readOnly`, `ask`, or
        a `Probe`. See `dalsegno.tool`. A tool without a policy is an error, before anything is asked or done.
    approvals: whether a tool that needs approval opens an approval of the run, and the run gives its pod back until a
        person has answered. Without it the requests are left to other capabilities or to the agent's output.
    models, event_stream_handler, name: as for each durability capability of Pydantic AI. Names must stay the same while
        a turn is open: they are in the ids of its calls. A model of a provider that is given by its name is
        built once for the requests of an agent run, so a `ResolveModelId` is not asked for each of them.

    Errors: `UserError` at the construction of the agent where a tool has no policy, has a timeout and may have an
    effect, or belongs to a toolset that cannot be made durable. An agent run raises `NotAttached` or `Error` outside of
    a turn; `Uncertain` where a tool may have run and must not run again: let it leave the process.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Dal Segno",
        durable_unit_noun="call",
        durable_container_noun="turn",
        codec=JSON_CODEC,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
    )

    def __init__(
        self,
        *,
        tools: Mapping[str, Policy | Probe] | None = None,
        approvals: bool = True,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._policies = {tool: _policy(tool, policy) for tool, policy in (tools or {}).items()}
        framework_probes.update(clean(tool) for tool, policy in self._policies.items() if policy.probe is not None)
        self._approvals = approvals
        self._journal: Journal | None = None

    @property
    def in_durable_context(self) -> bool:
        """Always: outside of a turn an agent run is an error, because nothing would be stored."""
        return True

    def get_durable_operation_backend(self) -> Journal:
        """The journal of the agent."""
        if self._journal is None:
            config = RoleBasedOperationConfig(
                model=READ_ONLY, event=READ_ONLY, capability=READ_ONLY, tool=READ_ONLY, resolve_tool=self._resolve_tool
            )
            self._journal = Journal(agent_name=self.name, default_model_id=self.default_model_id, config=config)
        return self._journal

    def get_default_run_id(self) -> str:
        """The same id in each attempt, for the first agent run of the turn, the second one, and so on.

        Errors: `NotAttached`; `Error` where no turn is open.
        """
        run = open_run()
        inside = enclosing_call()
        place = run._next_id(f"agent.{clean(inside)}" if inside else "agent")
        return str(uuid.uuid5(RUN_IDS, run._calls._key_prefix + place))

    def get_default_conversation_id(self, run_id: str) -> str:
        """Made of the id of the agent run."""
        return conversation_id_from_run_id(run_id)

    async def get_run_start_time(self, run_id: str) -> datetime:
        """When the agent run began for the first time: its `timeout` counts from there, over all attempts."""

        async def now() -> str:
            return datetime.now(timezone.utc).isoformat()

        return datetime.fromisoformat(await recorded(open_run(), f"{clean(self.name)}__run_start_time", now))

    async def before_run(self, ctx: RunContext[AgentDepsT]) -> None:
        """Errors: as `get_default_run_id`; `UserError` where a cancellation token is given."""
        open_run()
        await super().before_run(ctx)

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Lets `wait_for_external_event` wait for a message to the run, and keeps replayed work out of traces."""
        async with _NamedModels(ctx.run_id) as models:
            token = _named_models.set(models)
            try:
                with replay_scope(), external_event_scope(_waits.MessageWaiter()):
                    return await super().wrap_run(ctx, handler=handler)
            finally:
                _named_models.reset(token)

    async def wrap_model_request(
        self, ctx: RunContext[AgentDepsT], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        """Adds the tokens and the cost of each response to what the turn spends."""
        response = await super().wrap_model_request(ctx, request_context=request_context, handler=handler)
        tokens = {"tokens_in": response.usage.input_tokens, "tokens_out": response.usage.output_tokens}
        open_run()._spend(**tokens, cost_micro_usd=_cost(response))
        return response

    async def prepare_tools(
        self, ctx: RunContext[AgentDepsT], tool_defs: list[ToolDefinition]
    ) -> list[ToolDefinition]:
        """Refuses tools that came after the construction of the agent without a policy. Errors: `UserError`."""
        for tool in tool_defs:
            if tool.kind in ("function", "unapproved"):
                self._check(tool.name, tool.timeout)
        return tool_defs

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Asks a person about each call that needs approval. Errors: `Parked`, while nobody has answered."""
        if not self._approvals or not requests.approvals:
            return None
        return await _waits.ask_for_approvals(open_run(), ctx.run_id, requests)

    async def _resolve_model_for_request(self, model_id: str | None, run_context: RunContext[AgentDepsT]) -> Model:
        """A model that is given by its name is built once for an agent run, and keeps its connections until that ends.
        Pydantic AI would build it for each request."""
        models = _named_models.get()
        if models is None or models.run_id != run_context.run_id:  # another capability asks, outside of the run
            return await super()._resolve_model_for_request(model_id, run_context)
        if model_id in models.by_name:
            return models.by_name[model_id]
        model = await super()._resolve_model_for_request(model_id, run_context)
        if model.provider is not None and not self._registered_model_id(model)[0]:
            await models.keep(model_id, model, model.provider)
        return model

    def _bind_to_agent(self, agent: AbstractAgent[AgentDepsT, Any]) -> None:
        self._journal = None
        super()._bind_to_agent(agent)
        for toolset in agent.toolsets:
            toolset.apply(self._check_toolset)

    def _check_toolset(self, toolset: AbstractToolset[AgentDepsT]) -> None:
        if isinstance(toolset, FunctionToolset):
            for name, tool in toolset.tools.items():
                if isinstance(tool.function, Tool):
                    raise UserError(
                        f"The tool {name!r} is made by `dalsegno.tool`, and `Durability` makes each call durable itself: "
                        "give the agent the function, and `Durability` the policy."
                    )
                self._check(name, tool.timeout if tool.timeout is not None else toolset.timeout)
        elif not type(toolset).__module__.startswith("pydantic_ai."):  # those are wrapped, or call nothing themselves
            raise UserError(
                f"{toolset.label} cannot be made durable: its calls would run again after a crash. Make its tools functions "
                "of a `FunctionToolset`."
            )

    def _check(self, tool: str, timeout: float | None) -> None:
        policy = self._find_policy(tool)
        if timeout is not None and policy.name != "readOnly":
            raise UserError(
                f"The tool {tool!r} has a timeout: after it the model would be told to try again, and nobody would know "
                "whether the call took effect. Give the timeout to what the tool calls, or the policy `readOnly`."
            )

    def _find_policy(self, tool: str) -> CallPolicy:
        policy = self._policies.get(tool)
        if policy is None:
            raise UserError(
                f"The tool {tool!r} has no policy: nothing says what to do if a process dies during a call of it. Name "
                f'it in `Durability(tools={{"{tool}": …}})`, with `readOnly` if it changes nothing.'
            )
        return policy

    def _resolve_tool(
        self, operation_id: DurableOperationId, tool: object | None, name: str
    ) -> CallPolicy | Literal[False]:
        return self._find_policy(name) if name and isinstance(operation_id, ToolsetCallToolId) else READ_ONLY


class _NamedModels(contextlib.AsyncExitStack):
    """The models that an agent run has by their names. Their connections stay open until it ends."""

    def __init__(self, run_id: str | None) -> None:
        super().__init__()
        self.run_id = run_id
        self.by_name: dict[str | None, Model] = {}

    async def keep(self, name: str | None, model: Model, provider: Provider[Any]) -> None:
        await provider.__aenter__()
        self.push_async_callback(provider.__aexit__, None, None, None)
        self.by_name[name] = model


def _policy(tool: str, policy: Policy | Probe) -> CallPolicy:
    if isinstance(policy, Probe):
        return CallPolicy("probe", policy.find)
    if policy not in POLICIES:
        raise ValueError(f"the tool {tool!r}: a policy is `retrySameKey`, `readOnly`, `ask` or `Probe(…)`, not {policy!r}")
    return CallPolicy(policy)


def _cost(response: ModelResponse) -> int:
    """Millionths of a US dollar; 0 where the price of the model is not known."""
    with contextlib.suppress(LookupError, ValueError, AssertionError):
        return int(response.cost().total_price * Decimal(1_000_000))
    return 0


