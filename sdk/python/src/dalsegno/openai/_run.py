"""`run_agent`: an agent of the vendor whose turns are turns of the run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeVar, cast

from agents import (
    Agent,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    RunConfig,
    RunHooks,
    Runner,
    RunResultStreaming,
    RunState,
    StreamEvent,
    ToolApprovalItem,
    TResponseInputItem,
)
from agents.memory import Session
from agents.run import DEFAULT_MAX_TURNS
from pydantic import TypeAdapter, ValidationError

from dalsegno import _json
from dalsegno._errors import Error, Parked
from dalsegno._inbox import as_user_turn
from dalsegno._shapes import is_object
from dalsegno._waits import TITLE_CHARACTERS, Answer
from dalsegno.aio import AsyncRun, AsyncTurn
from dalsegno.aio._tools import value_of
from dalsegno.openai._link import Granted, Link, is_agent, link_of, name_part
from dalsegno.openai._model import DurableModel

STATE_KEY = "openai"
"""Where `run.state` has what `run_agent` stores: by the `id` of each."""

C = TypeVar("C")

AnyState: TypeAlias = "RunState[Any, Agent[Any]]"


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How an agent ended."""

    final_output: Any
    """The agent's last words, or an object of its `output_type`."""
    last_agent: str
    """The name of the agent that spoke last."""
    history: list[TResponseInputItem]
    """The whole conversation, as the input of another `run_agent`. With a `session` the session has it already."""


async def run_agent(
    run: AsyncRun[Any],
    agent: Agent[C],
    input: str | list[TResponseInputItem],
    *,
    id: str = "main",
    context: C | None = None,
    session: Session | None = None,
    run_config: RunConfig | None = None,
    hooks: RunHooks[C] | None = None,
    max_turns: int | None = DEFAULT_MAX_TURNS,
    inbox: bool = True,
    expires: float | timedelta | None = None,
    on_timeout: str | None = None,
    on_event: Callable[[StreamEvent], Awaitable[None] | None] | None = None,
) -> AgentResult:
    """Runs an agent that `guard` has returned until its final output, and returns it.

    Each turn of the agent (one answer of the model, and the tools that it calls) is one turn of the run. Its commit has
    the vendor's `RunState` in `run.state["openai"][id]`, the tokens and tool calls that it spent, and what the session
    got. A later attempt goes on after the last committed turn; in the open turn the model's answer and the outcomes of
    tools come from the store. Once the agent has ended, this returns what is stored, also in later attempts.

    run: attached with `state=dict`. input: what the first turn begins with; later attempts do not read it.
    id: names this agent's run among several in one run.
    context: the vendor's context. A mapping is stored after each turn, and later attempts go on with what is stored.
        Any other object is not stored: each attempt passes its own.
    session: a `RecordSession`. Another session writes where it likes, and repeats itself after a crash.
    run_config, hooks, max_turns: as of the vendor's `Runner`. `max_turns` counts over all attempts.
    inbox: gives the messages of the run's inbox to the model, before its next answer, as words of their authors.
    expires, on_timeout: of approvals, see `Run.wait`. A tool whose approval has expired is refused.
    on_event: gets the vendor's stream events. An open turn is streamed again after a crash.

    If tools need an approval (`needs_approval`), each call becomes an approval of the run with its arguments as the
    proposal. The turn is committed, and the process parks and leaves. The next attempt makes the calls that were
    approved, with `changes` in place of the model's arguments; their claims name the approval. The model gets to know
    of denials and changes.

    Errors: `ValueError` where the agent is not guarded or `run.state` is no dict; `Error` where two nested agents ask for
    approvals of calls with the same id of the model; `Leave` between two turns, see
    `Run.check`; `Uncertain`, `KeyRefused`, `Diverged`, `Refused`; what a tool with an effect raised; and the
    vendor's, such as `MaxTurnsExceeded` and tripwires of guardrails. After any error the turn is not committed.
    """
    if not isinstance(agent.model, DurableModel):
        raise ValueError("run_agent takes an agent that guard has returned: guard(run, agent, …)")
    if not isinstance(run.state, dict):
        raise ValueError("run_agent stores its turns in run.state: attach with state=dict")
    link = link_of(run)
    config = _durable_config(run, run_config or RunConfig())
    loop = _Loop(run, link, agent, id, context, session, config, hooks, max_turns, on_event)
    link.provider = config.model_provider
    try:
        while "output" not in (entry := loop.entry()):
            answers = await _answers(run, entry, expires, on_timeout)
            async with run.turn() as turn:
                await loop.turn(turn, entry, input, answers, inbox)
    finally:
        link.provider = None
        if run_config is None:
            await config.model_provider.aclose()
    return AgentResult(_decode_output(agent, entry), entry["agent"], entry["history"])


@dataclass(slots=True)
class _Loop(Generic[C]):
    """What is the same in all turns of a `run_agent`."""

    run: AsyncRun[Any]
    link: Link
    agent: Agent[C]
    id: str
    context: C | None
    session: Session | None
    config: RunConfig
    hooks: RunHooks[C] | None
    max_turns: int | None
    on_event: Callable[[StreamEvent], Awaitable[None] | None] | None

    def entry(self) -> dict[str, Any]:
        """What is committed: `{}`, then `{"state", "asked", "notes"}`, at last `{"output", "agent", "history"}`."""
        return cast("dict[str, Any]", self.run.state.get(STATE_KEY, {}).get(self.id, {}))

    async def turn(
        self,
        turn: AsyncTurn[Any],
        entry: Mapping[str, Any],
        input: str | list[TResponseInputItem],
        answers: Mapping[str, Answer],
        inbox: bool,
    ) -> None:
        """One turn of the agent, up to its commit."""
        self.link.error, self.link.records = None, []
        try:
            take = inbox and not answers and self._may_take()
            said = [as_user_turn(it) for it in await turn.take_messages()] if take else []
            news: list[Any] = [*entry.get("notes", []), *said]
            notes: list[Any] = []
            begin: str | list[TResponseInputItem] | AnyState
            if not entry:
                begin = _with_news(input, news)
            else:
                begin = await self._restored(entry["state"])
                if answers:  # the vendor accepts no input before the calls that were waited for are over
                    notes = [*news, *self._decide(begin, entry, answers)]
                elif news:
                    begin.add_input(news)
            result = await self._one_turn(begin)
            self._store(result, notes)
            turn.record(*self.link.records)
        except BaseException:
            for log in self.link.sessions.values():
                log.forget()
            raise
        finally:
            self.link.records = None
            self.link.granted.clear()

    def _may_take(self) -> bool:
        """Whether this turn looks at the inbox. A turn whose model has answered already does as it did before: a message
        that has come since would be taken, and the model would not have seen it."""
        number = self.run.next_turn
        if number not in self.link.takes:
            names = {call["id"].split(".")[1] for call in self.run.sync._calls.inherited() if call["turn"] == number}
            self.link.takes = {number: "messages" in names or ("model" not in names and self.run.new_messages)}
        return self.link.takes[number]

    async def _restored(self, stored: dict[str, Any]) -> AnyState:
        own = None if _is_stored(self.context) else _nothing  # it is given to the vendor again, see _one_turn
        return await RunState.from_json(self.agent, stored, context_deserializer=own)

    def _decide(self, state: AnyState, entry: Mapping[str, Any], answers: Mapping[str, Answer]) -> list[dict[str, str]]:
        """Tells the vendor's state what people have decided; returns what the model has to know of changes."""
        notes: list[dict[str, str]] = []
        asked = {wait["call"]: wait["id"] for wait in entry.get("asked", [])}
        for item in state.get_interruptions():
            call = _call_id(item)
            answer = answers[asked[call]]
            changes: Any = answer.changes if answer.outcome == "changed" else {}
            if answer.granted and is_object(changes):
                self.link.granted[call] = Granted(asked[call], changes)
                state.approve(item)
                if changes:
                    notes.append(as_user_turn(answer))
            else:
                state.reject(item, rejection_message=as_user_turn(answer)["content"])
        return notes

    async def _one_turn(self, begin: str | list[TResponseInputItem] | AnyState) -> RunResultStreaming:
        """Lets the vendor run one turn. Errors: the first that a guarded part has seen, before the vendor's own."""
        restored = isinstance(begin, RunState) and _is_stored(self.context)
        result = Runner.run_streamed(
            self.agent,
            begin,
            context=None if restored else self.context,
            max_turns=self.max_turns,
            hooks=self.hooks,
            run_config=self.config,
            session=self.session,
        )
        try:
            async for event in result.stream_events():
                if event.type != "agent_updated_stream_event":  # that one comes before the turn has begun
                    result.cancel(mode="after_turn")
                if self.on_event is not None:
                    await value_of(self.on_event(event))
        finally:
            if self.link.error is not None:
                raise self.link.error
        return result

    def _store(self, result: RunResultStreaming, notes: list[dict[str, str]]) -> None:
        """Puts what the next turn, or the caller, needs into the run's state."""
        state = result.to_state()
        stored = state.to_json(context_serializer=lambda _: {})
        if stored["current_step"] is None:
            output = _json.copy(result.final_output)
            entry = {"output": output, "agent": result.last_agent.name, "history": _json.copy(result.to_input_list())}
        else:
            asked = [_question(self.run, item) for item in result.interruptions]
            if len({it["id"] for it in asked}) < len(asked):  # the vendor would let one approval allow both
                raise Error("two calls with the same id of the model need an approval: nobody could tell them apart")
            entry = {"state": _json.copy(stored), "asked": asked, "notes": notes}
        self.run.state.setdefault(STATE_KEY, {})[self.id] = entry


async def _answers(
    run: AsyncRun[Any], entry: Mapping[str, Any], expires: float | timedelta | None, on_timeout: str | None
) -> dict[str, Answer]:
    """What people have decided about the calls of the last turn, by the ids of the approvals.

    Errors: `Parked` while an answer is missing; as `Run.wait` and `Run.park`.
    """
    ids = [asked["id"] for asked in entry.get("asked", [])]
    while True:
        waits = [
            await run.wait(
                asked["id"],
                "approval",
                title=asked["title"],
                proposal=asked["proposal"],
                expires=expires,
                on_timeout=on_timeout,
            )
            for asked in entry.get("asked", [])
        ]
        answers = {wait.id: wait.answer for wait in waits if wait.answer is not None}
        if len(answers) == len(ids):
            return answers
        if await run.park(ids):
            raise Parked("the run waits for approvals of tool calls")


def _question(run: AsyncRun[Any], item: ToolApprovalItem) -> dict[str, Any]:
    """An approval of a tool call: the arguments are what people decide on."""
    call, tool = _call_id(item), item.qualified_name or "a tool"
    try:
        proposal = json.loads(item.arguments or "{}")
    except ValueError:
        proposal = item.arguments
    id = run.sync._anew(f"{run.next_turn}.{name_part(tool, 40)}.{name_part(call)}")
    return {"id": id, "call": call, "title": f"{item.agent.name}: {tool}"[:TITLE_CHARACTERS], "proposal": proposal or {}}


def _call_id(item: ToolApprovalItem) -> str:
    """The vendor's id of a tool call, or of a request of an MCP server that the provider runs."""
    raw: Any = item.raw_item
    fields: dict[str, Any] = raw if is_object(raw) else raw.model_dump()
    id: str = fields.get("call_id") or fields["id"]
    return id


def _nothing(_: Any) -> None:
    """The context of a stored state that this attempt gives anew."""


def _is_stored(context: Any) -> bool:
    """Whether the vendor's state has the context. Other objects are given again by each attempt."""
    return context is None or isinstance(context, Mapping)


def _with_news(input: str | list[TResponseInputItem], news: list[TResponseInputItem]) -> str | list[TResponseInputItem]:
    if not news:
        return input
    first: list[TResponseInputItem] = [{"role": "user", "content": input}] if isinstance(input, str) else input
    return [*first, *news]


def _durable_config(run: AsyncRun[Any], config: RunConfig) -> RunConfig:
    """The vendor's settings; a model that they name for all agents is made durable too."""
    if config.model is None or isinstance(config.model, DurableModel):
        return config
    return dataclasses.replace(config, model=DurableModel(run, config.model, "all"))


def _decode_output(agent: Agent[Any], entry: Mapping[str, Any]) -> Any:
    """The final output as the agent that spoke last has it: an object of its `output_type`, if it has one."""
    speaker = next((it for it in _reachable(agent) if it.name == entry["agent"]), agent)
    kind = speaker.output_type
    if isinstance(kind, AgentOutputSchema):
        kind = kind.output_type
    output = entry["output"]
    if kind is None or kind is str:
        return output
    if isinstance(kind, AgentOutputSchemaBase):
        return kind.validate_json(json.dumps(output))
    try:
        return TypeAdapter(kind).validate_json(json.dumps(output))
    except ValidationError:  # a tool's output, where the agent stops at that tool
        return output


def _reachable(agent: Agent[Any]) -> list[Agent[Any]]:
    """The agent and those to which it may hand off, directly or not."""
    found = [agent]
    for each in found:
        for item in each.handoffs:
            target = item if isinstance(item, Agent) else item._agent_ref and item._agent_ref()
            if is_agent(target) and not any(target is known for known in found):
                found.append(target)
    return found
