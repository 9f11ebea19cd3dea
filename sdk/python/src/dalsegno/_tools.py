"""Tools: functions whose calls have one idempotency key for ever."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

from dalsegno import _codec, _current, _json, _ordinals
from dalsegno._calls import Begun
from dalsegno._errors import CallFailed, Error, KeyRefused, Uncertain
from dalsegno._ordinals import Slot
from dalsegno._waits import Approval

if TYPE_CHECKING:
    from dalsegno._run import Run

P = ParamSpec("P")
R = TypeVar("R")

Policy = Literal["retrySameKey", "readOnly", "probe", "ask"]
"""What happens to a call whose outcome nobody knows: see `tool`."""

NAME = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9_.:-]{0,63}")

_tools: dict[str, Tool[Any, Any]] = {}

framework_probes: set[str] = set()
"""Names of tools that a framework runs and probes itself, where their calls have ids of the default form. `Run.recover`
leaves calls with these names alone: nobody can tell whose they are."""


def tool(
    *,
    policy: Policy,
    name: str | None = None,
    probe: Callable[..., Any] | None = None,
    id: Callable[..., str] | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]:
    """Makes a function a tool: each call of it is stored, has one key for ever, and is not made again once it is over.

    policy: what happens if a process died during the call.
        `retrySameKey`: the function runs again with the same key, because what it calls honours the key.
        `readOnly`: the function runs again, because it changes nothing.
        `probe`: the `probe` function finds out.
        `ask`: the run is held until a person has found out.
    name: the tool's name, of `A-Z a-z 0-9 . _ : -` and at most 64 characters; by default the function's.
    probe: for the policy `probe`: a function that takes these parameters, or some of them, by name. It returns the
        result if the call took effect, and raises `CallFailed` if it did not: then the function runs again, with the
        same key. Whatever else it raises passes through, and the outcome stays unknown.
    id: a function with the same parameters but `key`, which returns the call's id. By default the id is
        `TURN.NAME.HASH.K`: HASH is of the arguments, and K counts the calls with these arguments in the turn, from 0.
        Between two turns it is `before-TURN`, with the number of the next one; behind a turn's plan it is
        `planned-TURN`. A call that is made again after an exception, while its outcome is unknown, is the same call. An
        id of your own does not begin with a number and the name.

    If the function has a parameter `key`, it gets the call's key. For type checkers give it a default: `key: str = ""`.
    Arguments and result are JSON, dataclasses or pydantic models. An annotated result type is decoded.

    Errors: `ValueError` where the policy is `probe` and there is no probe, or the name is not valid; in a call where its
    id has the form `NUMBER.NAME.…`, which the ids of turns have.
    """

    def wrap(function: Callable[P, R]) -> Tool[P, R]:
        return Tool(function, policy, name or function.__name__, probe, id)

    return wrap


class Tool(Generic[P, R]):
    """A function that `tool` has wrapped. Call it like the function, while the process is attached to a run.

    Errors of a call: `CallFailed` and `KeyRefused` as the function raised them, now or earlier; `Uncertain` where it
    may have run and must not run again; `Diverged` where the id is stored with other arguments; `Refused`;
    `NotAttached`; `Error` in a step or in another tool, unless the policy is `readOnly`. Any other exception of the
    function passes through, and the outcome is unknown.
    """

    def __init__(
        self,
        function: Callable[P, R],
        policy: Policy,
        name: str,
        probe: Callable[..., Any] | None,
        id: Callable[..., str] | None,
    ) -> None:
        if (policy == "probe") is not (probe is not None):
            raise ValueError(f"tool {name!r}: the policy `probe` has a probe, and no other policy has one")
        if not NAME.fullmatch(name):
            raise ValueError(f"tool {name!r}: a name has 1 to 64 characters of A-Z a-z 0-9 . _ : -")
        functools.update_wrapper(self, function)
        self.function = function
        self.policy: Policy = policy
        self.name = name
        self.probe = probe
        self._id = id
        self._approval: str | None = None
        signature = inspect.signature(function)
        visible = [it for it in signature.parameters.values() if it.name != "key"]
        self.__signature__ = signature.replace(parameters=visible)
        self.__annotations__ = {name: it for name, it in function.__annotations__.items() if name != "key"}
        _tools[name] = self

    def approved_by(self, approval: Approval | str) -> Tool[P, R]:
        """The same tool, for one call that the store allows only if this approval is granted: see `Run.approval`.

        Errors of that call: also `Refused` with `APPROVAL_NOT_GRANTED` or `APPROVAL_SPENT`.
        """
        id = approval.id if isinstance(approval, Approval) else approval
        tool = copy.copy(self)
        tool._approval = id
        return tool

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        run = _current.current()
        if inspect.iscoroutinefunction(self.function):
            from dalsegno.aio._tools import call_tool

            awaitable: Any = call_tool(run, self, args, kwargs)
            return awaitable  # type: ignore[no-any-return]
        result: R = self.bind(run, args, kwargs).make()
        return result

    def bind(self, run: Run[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BoundCall:
        """One call of the tool, with its id.

        Errors: `TypeError` where the arguments do not fit, or are not JSON; `Error` in a step or in another tool.
        """
        if self.policy != "readOnly" and run._is_in_call():
            # Once the call around it is over, a replay does not make this one again: the turn would end with `Diverged`.
            raise Error(
                f"the tool {self.name!r} is called inside of a step or of another tool, which is one call by itself: call "
                "it from the turn, or move what it does into a function without `tool`"
            )
        given = self.__signature__.bind(*args, **kwargs)
        given.apply_defaults()
        arguments = _json.copy(dict(given.arguments))
        if self._id is not None:
            slot = Slot(self._own_id(*args, **kwargs))
        else:
            digest = hashlib.sha256(_json.canonical(arguments).encode()).hexdigest()[:12]
            slot = run._slot(f"{self.name}.{digest}")
        id = run._anew(slot.id) if self.policy == "readOnly" else slot.id
        return BoundCall(self, run, slot, id, given.arguments, arguments)

    def _own_id(self, *args: Any, **kwargs: Any) -> str:
        """The id that the user's function gives a call. Errors: `ValueError` where it would be taken for one of ours."""
        assert self._id is not None
        id = self._id(*args, **kwargs)
        if _ordinals.has_place(id, self.name):
            raise ValueError(
                f"tool {self.name!r}: the id {id!r} of your own begins with a number and the tool's name, as the ids of a "
                "turn do. Let it begin with something else"
            )
        return id

    def has_made(self, call: Mapping[str, Any]) -> bool:
        """Whether a stored call is one of this tool. A tool of a framework may have the same name, but other ids.

        If an older client or gateway has kept no name, the id alone says it.
        """
        id, name = call["id"], call.get("tool")
        if name is None or self._id is None:
            return name in (None, self.name) and self._has_made_id(id)
        is_of_framework = _ordinals.has_place(id, self.name) or id.startswith(f"lg.{self.name}.")
        return name == self.name and not is_of_framework

    def _has_made_id(self, id: str) -> bool:
        return _ordinals.tool_of(id) == self.name

    def rebind(self, run: Run[Any], call: Mapping[str, Any]) -> BoundCall:
        """The call of an earlier attempt, with its stored arguments as the function is annotated."""
        arguments: dict[str, Any] = call.get("arguments") or {}
        hints = _codec.hints(self.function)
        given = {name: _codec.decode(hints.get(name), value) for name, value in arguments.items()}
        return BoundCall(self, run, Slot(call["id"]), call["id"], given, arguments)


class BoundCall:
    """One call of a tool. If `begin` returns a claim, the function has to run; then `end` stores how it ended.

    At the end of `with bound` the call is over, or its id is free for the same call again.
    """

    def __init__(
        self, tool: Tool[Any, Any], run: Run[Any], slot: Slot, id: str, given: Mapping[str, Any], arguments: Any
    ) -> None:
        self._tool, self._run, self._slot, self._id = tool, run, slot, id
        self._given, self._arguments = given, arguments
        self._settles = False
        self._result: Any = None

    def __enter__(self) -> BoundCall:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None or issubclass(kind, CallFailed):
            self._slot.done()
        else:
            self._slot.reopen()

    @property
    def id(self) -> str:
        """The id of the call."""
        return self._id

    @property
    def result(self) -> Any:
        """The result, decoded as the function is annotated."""
        return _codec.decode(_codec.return_type(self._tool.function), self._result)

    def make(self) -> Any:
        """Makes the call, and returns the result."""
        with self:
            begun = self.begin()
            if begun is not None:
                try:
                    with begun.running():
                        result = self.run_function(begun)
                        result = _run_coroutine(result) if inspect.iscoroutine(result) else result
                except (CallFailed, KeyRefused) as refusal:
                    self.end(begun, refusal.outcome, refusal.result)
                    raise
                self.end(begun, "completed", result)
        return self.result

    def begin(self) -> Begun | None:
        """Claims the call; `None` if it is over and `result` is there. It asks the probe of an uncertain call.

        If the probe finds that nothing took effect, the function runs now, with the same key, and the call is settled
        as that ends. If the process dies in between, the next attempt asks the probe again.
        """
        try:
            tool = self._tool
            begun = self._run._calls.begin(self._id, tool.policy, None, self._arguments, tool._approval, tool.name)
        except Uncertain as uncertain:
            if self._tool.probe is None or uncertain.call["state"] != "started":
                raise
            return self._ask_probe(self._tool.probe, uncertain.call)
        self._result = begun.result
        return begun if begun.must_run else None

    def run_function(self, begun: Begun) -> Any:
        """Runs the function; of an `async def` it is the coroutine."""
        return _apply(self._tool.function, {**self._given, "key": begun.key})

    def end(self, begun: Begun, outcome: str, result: Any) -> None:
        """Records how the function ended."""
        self._result = _json.copy(result)
        if not self._settles:
            self._run._calls.end(begun, outcome, self._result)
        elif outcome != KeyRefused.outcome:  # a refused key leaves the call to the next probe
            found = "the probe found no effect, and the tool ran"
            self._run._calls.settle(self._id, outcome, found, self._result, begun.usage)

    def _ask_probe(self, probe: Callable[..., Any], call: Mapping[str, Any]) -> Begun | None:
        try:
            found = _apply(probe, {**self._given, "key": call["key"]})
            self._result = _json.copy(_run_coroutine(found) if inspect.iscoroutine(found) else found)
        except CallFailed:
            self._settles = True
            return Begun(self._id, None, True, call["key"], self._arguments, None)
        self._run.settle(self._id, "completed", "the probe found the effect", self._result)
        return None


def stored_calls(run: Run[Any]) -> list[BoundCall]:
    """The unsettled calls of earlier attempts that have a probe. See `Tool.has_made`."""
    return [
        known.rebind(run, call)
        for call in run._calls.inherited()
        if call["policy"] == "probe" and call["state"] == "started"
        for known in _tools.values()
        if known.probe is not None
        and (known._id is not None or known.name not in framework_probes)
        and known.has_made(call)
    ]


def _apply(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Calls a function with arguments by name; `key` is left out if it is not a parameter."""
    signature = inspect.signature(function)
    given = OrderedDict((name, arguments[name]) for name in signature.parameters if name in arguments)
    bound = inspect.BoundArguments(signature, given)
    return function(*bound.args, **bound.kwargs)


def _run_coroutine(coroutine: Any) -> Any:
    """Runs a probe that is a coroutine. In an asynchronous agent this is the thread of its requests."""
    import asyncio

    return asyncio.run(coroutine)
