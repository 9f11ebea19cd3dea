"""The journal: each operation of an agent run is a call of the open turn, and is answered from the store when the turn
is replayed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeGuard, TypeVar

from pydantic_ai.durable_exec import (
    DurableOperationConfig,
    DurableOperationId,
    JournalCallableOperationBackend,
    ModelRequestId,
    ToolsetCallToolId,
    record_durable_unit,
)
from pydantic_ai.tools import RunContext
from pydantic_core import to_jsonable_python

from dalsegno import _current, _json
from dalsegno._agent_call import AgentCall, ask_probe, enclosing_call, inside, running
from dalsegno._calls import Begun
from dalsegno._errors import CallFailed, Error, KeyRefused, Unhandled
from dalsegno._portal import Portal
from dalsegno._run import Run
from dalsegno._tools import Policy

P = ParamSpec("P")
R = TypeVar("R")

NAME_CHARS = 64
"""Characters of a name in the id of a call. A longer name is cut and gets a hash."""

Body = Callable[[], Awaitable[object]]

_key: ContextVar[str | None] = ContextVar("dalsegno.pydantic_ai.key", default=None)


@dataclass(frozen=True, slots=True)
class Probe:
    """The policy `probe` of a tool: `find` says whether a call took effect whose outcome nobody knows.

    find: a function, or an `async def`, with the tool's parameters apart from a `RunContext`; if it has a parameter
        `key`, it gets the call's key. It returns what the tool would have returned, and raises `dalsegno.CallFailed` if
        nothing took effect: then the tool runs, with the same key. Whatever else it raises passes through, and the
        outcome stays unknown.
    """

    find: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """What happens to a call whose outcome nobody knows: see `dalsegno.tool`."""

    name: Policy
    probe: Callable[..., Any] | None = None


READ_ONLY = CallPolicy("readOnly")


def call_key() -> str:
    """The idempotency key of the tool call in which this is called: the same one each time that the call is made again.

    Errors: `LookupError` outside of a tool of an agent with `Durability`.
    """
    key = _key.get()
    if key is None:
        raise LookupError("`call_key()` is called inside of a tool of an agent with the capability `Durability`")
    return key


def open_run() -> Run[Any]:
    """The run of this process, whose turn is open. Errors: `NotAttached`; `Error` where no turn is open."""
    run = _current.current()
    if run._turn is None:
        raise Error("an agent with the capability `Durability` runs inside of `run.turn()`: open a turn around it")
    return run


async def send(run: Run[Any], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Runs a function in the thread that sends the run's requests. Errors: its own; `Unhandled` for a `Leave`."""
    try:
        return await Portal.of(run).call(function, *args, **kwargs)
    except SystemExit as leave:
        raise Unhandled(leave) from None


def clean(name: str) -> str:
    """A name as a part of a call's id: other characters become `-`, and a long name is cut and gets a hash."""
    cleaned = re.sub(r"[^A-Za-z0-9_.:-]", "-", name)
    return cleaned if len(cleaned) <= NAME_CHARS else f"{cleaned[: NAME_CHARS - 9]}-{digest(name)[:8]}"


def digest(text: str) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def approval_name(tool: str, run_id: str | None, tool_call_id: str | None) -> str:
    """What names an approval in a turn: the tool, and which call of which agent run."""
    return f"{clean(tool)}.{digest(json.dumps([run_id, tool_call_id]))[:12]}"


def approval_id(run: Run[Any], name: str) -> str:
    """The id of an approval in the open turn. After a rewind it is asked anew."""
    return run._anew(f"{run.next_turn}.{name}")


class Journal(JournalCallableOperationBackend[CallPolicy]):
    """Runs the operations of one agent as calls of the open turn.

    Ids: `TURN.TOOL.HASH.K` for a tool, HASH of its arguments, as `dalsegno.tool` makes them, with `in-HASH` of the outer
    call before K for a tool of an agent that runs in a tool; `TURN.OPERATION.HASH.K` for what changes nothing, HASH of
    the agent run. K counts, from 0. The names of operations are Pydantic AI's.
    """

    def __init__(
        self, *, agent_name: str, default_model_id: str | None, config: DurableOperationConfig[CallPolicy]
    ) -> None:
        super().__init__(agent_name=agent_name, default_model_id=default_model_id, config=config)

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Body,
        cache_key: tuple[object, ...],
        config: CallPolicy,
    ) -> object:
        """See `CallableOperationBackend.execute`.

        Errors: as `dalsegno.Tool`. A tool's `CallFailed` is no error: the model reads that the call has failed.
        """
        run = open_run()
        context = _context(cache_key)
        if isinstance(operation_id, ToolsetCallToolId):
            return await _execute_tool(run, cache_key, context, config, body)
        if isinstance(operation_id, ModelRequestId) and not enclosing_call():
            await send(run, run.check)  # no tool of this agent run is open here
        scope = digest(f"{context.run_id if context else ''}{enclosing_call()}")[:8]
        return await recorded(run, f"{clean(name)}.{scope}", body)


async def recorded(run: Run[Any], name: str, body: Body) -> Any:
    """What `body` returns, as JSON. It is called once: its result is stored, and a replay of the turn gets it back."""
    step = await send(run, run._begin_step, name)
    with step:
        record_durable_unit(executed=step.begun.must_run)
        if not step.begun.must_run:
            return step.begun.result
        with step.begun.running():
            result = await body()
        return await send(run, run._end_step, step, result)


def _context(cache_key: Iterable[object]) -> RunContext[Any] | None:
    return next((it for it in cache_key if _is_context(it)), None)


def _is_context(value: object) -> TypeGuard[RunContext[Any]]:
    return isinstance(value, RunContext)


async def _execute_tool(
    run: Run[Any], cache_key: tuple[object, ...], context: RunContext[Any] | None, policy: CallPolicy, body: Body
) -> object:
    """One call of a tool, new or stored. Its cache key is the tool's name, its arguments and the context of the run."""
    tool, arguments = str(cache_key[0]), to_jsonable_python(cache_key[1], bytes_mode="base64")
    slot = run._slot(f"{clean(tool)}.{digest(_json.canonical(arguments))[:12]}{inside(enclosing_call())}")
    call = AgentCall(run, slot, clean(tool), policy.name, arguments, _approval(run, tool, context))
    run._spend(tool_calls=1)
    with call:
        try:
            begun = await call.claim(partial(send, run), partial(_ask, policy.probe) if policy.probe else None)
        except CallFailed as failed:
            record_durable_unit(executed=False)
            return _failed(failed)
        record_durable_unit(executed=begun is not None)
        return call.result if begun is None else await _run_tool(run, call, begun, body)


async def _run_tool(run: Run[Any], call: AgentCall, begun: Begun, body: Body) -> object:
    """The stored form of what the tool returns now."""
    try:
        with running(begun), _with_key(begun.key):
            payload = _json.copy(await body())
    except (CallFailed, KeyRefused) as refusal:
        await send(run, call.end, begun, refusal.outcome, refusal.result)
        if isinstance(refusal, CallFailed):
            return _failed(refusal)
        raise
    except SystemExit as leave:
        raise Unhandled(leave) from None
    await send(run, call.end, begun, "completed", payload)
    return payload


async def _ask(probe: Callable[..., Any], call: Mapping[str, Any]) -> object:
    """The stored form of what the probe finds."""
    return {"result": to_jsonable_python(await ask_probe(probe, call)), "kind": "tool_return"}


def _approval(run: Run[Any], tool: str, context: RunContext[Any] | None) -> str | None:
    """The id of the granted approval that this call of a tool was asked for; `None` if nobody was asked."""
    if context is None or not context.tool_call_approved:
        return None
    wait = run.waits.get(approval_id(run, approval_name(tool, context.run_id, context.tool_call_id)))
    return wait.id if wait is not None and wait.answer is not None and wait.answer.granted else None


@contextmanager
def _with_key(key: str) -> Generator[None]:
    """Lets the code inside know the key of its call."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


def _failed(failed: CallFailed) -> dict[str, Any]:
    """A tool that refused and changed nothing, in the form in which Pydantic AI stores a failed tool."""
    text = failed.result if isinstance(failed.result, str) else json.dumps(failed.result)
    return {"message": "The call has failed, and nothing was changed." if failed.result is None else text, "kind": "tool_failed"}
