"""`guard`: the tools of a graph, each of whose calls takes effect once."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import re
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver

from dalsegno import _json
from dalsegno._calls import Begun
from dalsegno._errors import CallFailed, Error, Uncertain, Unhandled
from dalsegno._run import Run
from dalsegno._tools import NAME, Policy
from dalsegno.aio import AsyncRun
from dalsegno.langgraph._io import Io
from dalsegno.langgraph._running import NOT_DONE, Running
from dalsegno.langgraph._threads import typed, untyped

Probe = Callable[..., Any]
"""Finds out whether a call took effect: see `guard`."""

VENDOR_ID = re.compile(r"[A-Za-z0-9_:-]{1,32}")

CALL_ID = re.compile(r"lg\.(?P<name>.+)\.[A-Za-z0-9_:-]{1,32}\.[0-9a-f]{16}(\.r\d+)?")
"""What `_call_id` and `Guard` make."""


def guard(run: Run[Any] | AsyncRun[Any], /, **policies: Policy | Probe) -> Guard:
    """Makes the calls of tools calls of the run: `ToolNode([pay], wrap_tool_call=guard(run, pay="retrySameKey"))`.

    In an asynchronous graph give the same guard as `awrap_tool_call` too.

    policies: by the names of the tools: `retrySameKey`, `readOnly` or `ask`, as in `dalsegno.tool`; or a function, the
        probe of a tool with the policy `probe`. A probe has the parameters of the tool, and perhaps `key`. It returns
        what the tool would have returned if the call took effect, and raises `CallFailed` if it did not: then the tool
        runs again, as another call with another key. `run_graph` asks the probes before the graph goes on.

    A call is stored under the id that the model has given it, and under the task of the graph, before the tool runs. A
    later attempt gets its result back. If the outcome is unknown, the policy decides.

    A tool with a parameter `key: Key = ""` gets the key of the call. A tool that refuses and has changed nothing raises
    `CallFailed`: the model reads the failure, and the store keeps it. Whatever else a tool raises leaves the outcome unknown, and
    ends the graph (`Unhandled`), because a model that reads an error tries again, as another call. A tool with the
    policy `readOnly` may raise what it likes: there `handle_tool_errors` decides.

    Errors: `ValueError` where a policy is none of these, or a name cannot be a tool's. While the graph runs, as
    `Unhandled`: `Error` for a tool without a policy, `Uncertain`, `Diverged`, `KeyRefused`, `Refused`, and what a tool
    raises.
    """
    return Guard(run, policies)


class Guard:
    """A wrapper of tool calls for `ToolNode`, for asyncio too. `guard` makes it."""

    def __init__(self, run: Run[Any] | AsyncRun[Any], policies: Mapping[str, Policy | Probe]) -> None:
        for name, policy in policies.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"guard: {name!r} is no name of a tool: 1 to 64 characters of A-Z a-z 0-9 . _ : -")
            if not callable(policy) and policy not in ("retrySameKey", "readOnly", "ask"):
                raise ValueError(f"guard: {name}={policy!r} is no policy; instead of `probe` give the probe itself")
        self._io = Io(run)
        self._serde = BaseCheckpointSaver().serde
        self._policies = dict(policies)
        _probes.setdefault(self._io.run, {}).update({name: it for name, it in policies.items() if callable(it)})

    def __call__(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        """Makes one call of a tool. It returns an awaitable if `execute` is an `async def`."""
        if inspect.iscoroutinefunction(execute):
            return self._acall(request, execute)
        if request.tool is None:
            return execute(request)  # the model has made up the tool: LangGraph tells it so
        policy = self._policy_of(request)
        try:
            begun = self._io.call(self._begin, request, policy)
        except Exception as error:
            return self._not_begun(request, error)
        if not begun.must_run:
            return self._decode(request, begun.result)
        call = Running(request, begun.key, policy)
        try:
            with begun.running():
                outcome, result = call.over(execute(call.request))
        except BaseException as error:
            outcome, result = call.failed(error)
        self._io.call(self._io.run._calls.end, begun, outcome, self._encode(outcome, result))
        call.raise_if_refused()
        return self._message(request, outcome, result)

    async def _acall(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        if request.tool is None:
            return await execute(request)
        policy = self._policy_of(request)
        try:
            begun = await self._io.acall(self._begin, request, policy)
        except Exception as error:
            return self._not_begun(request, error)
        if not begun.must_run:
            return self._decode(request, begun.result)
        call = Running(request, begun.key, policy)
        try:
            with begun.running():
                outcome, result = call.over(await execute(call.request))
        except BaseException as error:
            outcome, result = call.failed(error)
        await self._io.acall(self._io.run._calls.end, begun, outcome, self._encode(outcome, result))
        call.raise_if_refused()
        return self._message(request, outcome, result)

    def _policy_of(self, request: Any) -> str:
        name = request.tool_call["name"]
        if name not in self._policies:
            raise Unhandled(Error(f"the tool {name!r} has no policy: name it in `guard`"))
        policy = self._policies[name]
        return "probe" if callable(policy) else policy

    def _begin(self, request: Any, policy: str) -> Begun:
        """Claims a call. A call that has certainly changed nothing is made again, as another one."""
        run, call = self._io.run, request.tool_call
        first = _call_id(request)
        for number in itertools.count(1):
            id = first if number == 1 else f"{first}.r{number}"
            if policy == "readOnly":
                id = run._anew(id)
            try:
                return run._calls.begin(id, policy, None, call["args"], None, tool=call["name"])
            except CallFailed as failed:
                if failed.result != NOT_DONE:
                    raise
            except Uncertain as uncertain:
                if policy != "probe" or uncertain.call["state"] != "started":
                    raise
                _ask_probe(run, _probes[run][call["name"]], uncertain.call)
        raise AssertionError("the numbers have no end")

    def _not_begun(self, request: Any, error: Exception) -> Any:
        """A call that must not run. A refusal of the tool is stored, and the model is told again."""
        if isinstance(error, CallFailed):
            return self._message(request, "failed", error.result)
        raise Unhandled(error) from error

    def _message(self, request: Any, outcome: str, result: Any) -> Any:
        """What the graph gets: the tool's own answer, or a message that it refused."""
        if outcome == "completed":
            return result
        text = _text(result)
        return self._tool_message(request, text if text.startswith("Error") else f"Error: {text}", "error")

    def _encode(self, outcome: str, result: Any) -> Any:
        """The answer of a tool as JSON that people can read, or serialized by LangGraph where that would lose something.

        Why a tool refused is stored as it is.
        """
        if outcome != "completed":
            return result
        if isinstance(result, ToolMessage) and result.artifact is None and not result.additional_kwargs:
            return {"toolMessage": {"content": result.content, "status": result.status}}
        return {"langgraph": untyped(self._serde.dumps_typed(result))}

    def _decode(self, request: Any, stored: Any) -> Any:
        """A stored answer of a tool. What a probe or a person has found is the content of the tool's message."""
        match stored:
            case {"langgraph": value}:
                return self._serde.loads_typed(typed(value))
            case {"toolMessage": {"content": content, "status": status}}:
                return self._tool_message(request, content, status)
            case _:
                return self._tool_message(request, "done" if stored is None else _text(stored), "success")

    def _tool_message(self, request: Any, content: Any, status: str) -> Any:
        call = request.tool_call
        return ToolMessage(content=content, name=call["name"], tool_call_id=call["id"], status=status)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json.dumps(value)


def recover(run: Run[Any]) -> list[dict[str, Any]]:
    """Adopts the calls of earlier attempts and asks their probes, so that the gateway accepts what the graph stores.

    Returns the calls whose outcome is still unknown: see `Run.recover`. Errors: whatever a probe raises.
    """
    run.adopt()
    for call in run._calls.inherited():
        id = CALL_ID.fullmatch(call["id"])
        probe = _probes.get(run, {}).get(id["name"]) if id else None
        if probe is not None and (call["policy"], call["state"]) == ("probe", "started"):
            _ask_probe(run, probe, call)
    return run.recover()


def _ask_probe(run: Run[Any], probe: Probe, call: Mapping[str, Any]) -> None:
    """Finds out whether a call took effect, and settles it."""
    arguments = dict(call.get("arguments") or {})
    if "key" in inspect.signature(probe).parameters:
        arguments["key"] = call["key"]
    try:
        found = probe(**arguments)
        if inspect.iscoroutine(found):
            found = asyncio.run(found)  # the thread of the requests has no event loop
    except CallFailed:
        run.settle(call["id"], "failed", "the probe found that nothing took effect", NOT_DONE)
    else:
        run.settle(call["id"], "completed", "the probe found the effect", _json.copy(found))


_probes: weakref.WeakKeyDictionary[Run[Any], dict[str, Probe]] = weakref.WeakKeyDictionary()


def _call_id(request: Any) -> str:
    """The id of a call, the same in each attempt: `lg.NAME.ID.PLACE`.

    ID is the model's id of the call, and PLACE a digest of the task and that id: models give an id twice. The task's id is
    a part of the checkpoint namespace. It is made from the checkpoint that the task began with.
    """
    call, config = request.tool_call, request.runtime.config
    namespace = config.get("configurable", {}).get("checkpoint_ns", "")
    place = hashlib.sha256(f"{namespace}\n{call['name']}\n{call['id']}".encode()).hexdigest()[:16]
    id = str(call["id"])
    return f"lg.{call['name']}.{id if VENDOR_ID.fullmatch(id) else 'call'}.{place}"
