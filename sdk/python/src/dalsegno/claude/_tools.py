"""The tools of a session: calls of functions of this process, each under the id that the model gave it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol, cast

from claude_agent_sdk import create_sdk_mcp_server

from dalsegno import _json
from dalsegno._errors import CallFailed, Error, KeyRefused
from dalsegno._tools import Policy, Tool

Result = dict[str, Any]
"""What a tool of the SDK returns: `{"content": [blocks], "is_error": bool}`."""

Probe = Callable[..., Any]

_key: ContextVar[str] = ContextVar("dalsegno.claude.key")
_tool_use_id: ContextVar[str] = ContextVar("dalsegno.claude.tool_use_id")


class SdkTool(Protocol):
    """What `claude_agent_sdk.tool` makes."""

    @property
    def name(self) -> str: ...

    @property
    def handler(self) -> Callable[[Any], Awaitable[Result]]: ...

    @property
    def annotations(self) -> Any: ...


def call_key() -> str:
    """The idempotency key of the tool call that runs: the same in every attempt, and different in every run.

    Errors: `LookupError` outside of a tool of a `Session`.
    """
    return _key.get()


class Tools:
    """The tools of this process, by their full names: `mcp__SERVER__TOOL`.

    The CLI passes no id to a tool of this process. But it asks the hook before each call, and it makes calls with an
    effect one after the other. So a call is the one that the hook has let through last.
    """

    def __init__(
        self,
        tools: Mapping[str, Sequence[SdkTool]],
        policies: Mapping[str, Policy],
        probes: Mapping[str, Probe],
        fail: Callable[[BaseException], None],
    ) -> None:
        """fail: is told what a tool may not show to the model; the process has to leave.

        Errors: `ValueError` where a tool has no policy, or a policy has no tool.
        """
        self._fail = fail
        self._durable: dict[str, Tool[Any, Any]] = {}
        self._let_through: list[tuple[str, str, str]] = []
        self._approvals: dict[str, str] = {}
        self._open: set[str] = set()
        self.servers: dict[str, Any] = {}
        known = {f"mcp__{server}__{each.name}": each for server, own in tools.items() for each in own}
        for name in {*policies, *probes} - known.keys():
            raise ValueError(f"there is no tool {name!r}: a policy is for one of {sorted(known)}")
        for name, each in known.items():
            if name not in policies:
                raise ValueError(f"the tool {name!r} needs a policy: only its author knows what a crash leaves behind")
            self._check_hint(name, each, policies[name])
            function = _function(each, policies[name])
            self._durable[name] = _Durable(function, policies[name], name, probes.get(name), _call_id(name))
        for server, own in tools.items():
            wrapped = [self._wrap(f"mcp__{server}__{each.name}", each) for each in own]
            self.servers[server] = create_sdk_mcp_server(server, tools=wrapped)

    def __contains__(self, name: str) -> bool:
        return name in self._durable

    @property
    def open_calls(self) -> list[str]:
        """The ids of the calls that run now."""
        return sorted(self._open)

    def let_through(self, name: str, id: str, arguments: Any, approval: str | None) -> None:
        """The next call of this tool with these arguments has this id."""
        self._let_through.append((name, _json.canonical(arguments), id))
        if approval is not None:
            self._approvals[id] = approval

    def forget(self, id: str) -> None:
        """The call is over, or does not happen."""
        self._let_through = [it for it in self._let_through if it[2] != id]

    async def call(self, name: str, id: str, arguments: Any) -> Result:
        """Makes a call, or returns the result that is stored of it. A refusal of the tool is a result for the model.

        Errors: whatever leaves the outcome unknown; see `dalsegno.Tool`.
        """
        durable = self._durable[name]
        if id in self._approvals:
            durable = durable.approved_by(self._approvals[id])
        token = _tool_use_id.set(id)
        call_id = _call_id(name)()
        self._open.add(call_id)
        try:
            return cast(Result, await cast("Awaitable[Any]", durable(arguments)))
        except CallFailed as refused:
            text = refused.result if isinstance(refused.result, str) else _json.dumps(refused.result)
            return {"content": [{"type": "text", "text": text}], "is_error": True}
        finally:
            self._open.discard(call_id)
            _tool_use_id.reset(token)

    def _wrap(self, name: str, tool: SdkTool) -> Any:
        async def handler(arguments: Any) -> Result:
            try:
                return await self.call(name, self._take(name, arguments), arguments)
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:
                self._fail(error)
                await never()

        return dataclasses.replace(cast(Any, tool), handler=handler)

    def _take(self, name: str, arguments: Any) -> str:
        text = _json.canonical(arguments)
        mine = [it for it in self._let_through if it[0] == name]
        found = [it for it in mine if it[1] == text] or mine
        if not found:
            raise Error(f"the CLI called {name} without asking the hook before it")
        self._let_through.remove(found[-1])
        return found[-1][2]

    def _check_hint(self, name: str, tool: SdkTool, policy: Policy) -> None:
        """The CLI runs tools that say `readOnlyHint` at the same time, so an effect may not hide behind the hint."""
        hints: dict[str, Any] = {} if tool.annotations is None else tool.annotations.model_dump(by_alias=True)
        if hints.get("readOnlyHint") and policy != "readOnly":
            raise ValueError(f"the tool {name!r} says readOnlyHint, and its policy is {policy}: one of them is wrong")


def _function(tool: SdkTool, policy: Policy) -> Callable[..., Awaitable[Result]]:
    """The tool's handler as a function of `dalsegno.tool`."""

    async def function(arguments: Any, *, key: str = "") -> dict[str, Any]:
        token = _key.set(key)
        try:
            return await tool.handler(arguments)
        except (CallFailed, KeyRefused):
            raise
        except Exception as error:
            if policy == "readOnly":  # nothing has changed, so the model may know
                raise CallFailed(str(error) or type(error).__name__) from error
            raise
        finally:
            _key.reset(token)

    return function


class _Durable(Tool[Any, Any]):
    """A tool of `dalsegno.tool`, whose calls have ids that name the tool and the CLI's id of the call."""

    def _has_made_id(self, id: str) -> bool:
        return tool_of(id) == self.name


def _call_id(name: str) -> Callable[..., str]:
    return lambda *_, **__: f"claude.{name}.{_tool_use_id.get()}"


def tool_of(id: str) -> str | None:
    """The name of the tool in the id of a call; `None` where no session has made it. The CLI's ids have no dot."""
    prefix, _, name = id.rpartition(".")[0].partition(".")
    return name if prefix == "claude" else None


async def never() -> NoReturn:
    """Does not return. The process is about to leave, and the model may not go on without an answer."""
    await asyncio.Event().wait()
    raise AssertionError
