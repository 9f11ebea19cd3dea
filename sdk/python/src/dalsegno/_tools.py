"""Tools: functions whose calls have one idempotency key for ever."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

from dalsegno import _codec, _current, _json
from dalsegno._calls import Begun
from dalsegno._errors import CallFailed, KeyRefused, Uncertain
from dalsegno._ordinals import Slot
from dalsegno._waits import Approval

if TYPE_CHECKING:
    from dalsegno._run import Run

P = ParamSpec("P")
R = TypeVar("R")

Policy = Literal["retrySameKey", "readOnly", "probe", "ask"]
"""What happens to a call whose outcome nobody knows: see `tool`."""

NAME = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9_.:-]{0,63}")

NOT_DONE = {"dalsegno": "notDone"}
"""The stored result of a call of which its probe has found that nothing took effect. The next call is another one."""

_tools: dict[str, Tool[Any, Any]] = {}


def tool(
    *, policy: Policy, name: str | None = None, probe: Callable[..., Any] | None = None, id: Callable[..., str] | None = None
) -> Callable[[Callable[P, R]], Tool[P, R]]:
    """Makes a function a tool: each call of it is stored, has one key for ever, and is not made again once it is over.

    policy: what happens if a process died during the call.
        `retrySameKey`: the function runs again with the same key, because what it calls honours the key.
        `readOnly`: the function runs again, because it changes nothing.
        `probe`: the `probe` function finds out.
        `ask`: the run is held until a person has found out.
    name: the tool's name, of `A-Z a-z 0-9 . _ : -` and at most 64 characters; by default the function's.
    probe: for the policy `probe`: a function with the same parameters. It returns the result if the call took effect,
        and raises `CallFailed` if it did not: then the function runs again, as another call with another key. Whatever
        else it raises passes through, and the outcome stays unknown.
    id: a function with the same parameters but `key`, which returns the call's id. By default the id is
        `TURN.NAME.HASH.K`: HASH is of the arguments, and K counts the calls with these arguments in the turn, from 0. A
        call that is made again after an exception, while its outcome is unknown, is the same call.

    If the function has a parameter `key`, it gets the call's key. For type checkers give it a default: `key: str = ""`.
    Arguments and result are JSON, dataclasses or pydantic models. An annotated result type is decoded.

    Errors: `ValueError` where the policy is `probe` and there is no probe, or the name is not valid.
    """

    def wrap(function: Callable[P, R]) -> Tool[P, R]:
        return Tool(function, policy, name or function.__name__, probe, id)

    return wrap


class Tool(Generic[P, R]):
    """A function that `tool` has wrapped. Call it like the function, while the process is attached to a run.

    Errors of a call: `CallFailed` and `KeyRefused` as the function raised them, now or earlier; `Uncertain` where it may
    have run and must not run again; `Diverged` where the id is stored with other arguments; `Refused`; `NotAttached`.
    Any other exception of the function passes through, and the outcome is unknown.
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
        self._has_key = "key" in signature.parameters
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
        with self.bind(run, args, kwargs) as bound:
            begun = bound.begin()
            if begun is not None:
                try:
                    result = self.function(*args, **bound.keyed(begun))
                except (CallFailed, KeyRefused) as refusal:
                    bound.end(begun, refusal.outcome, refusal.result)
                    raise
                bound.end(begun, "completed", result)
        decoded: R = bound.result
        return decoded

    def bind(self, run: Run[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BoundCall:
        """One call of the tool, with its id. Errors: `TypeError` where the arguments do not fit, or are not JSON."""
        given = self.__signature__.bind(*args, **kwargs)
        given.apply_defaults()
        arguments = _json.copy(dict(given.arguments))
        if self._id is not None:
            slot = Slot(self._id(*args, **kwargs))
        else:
            digest = hashlib.sha256(_json.canonical(arguments).encode()).hexdigest()[:12]
            slot = run._slot(f"{self.name}.{digest}")
        return BoundCall(self, run, slot, arguments, dict(kwargs))


class BoundCall:
    """One call of a tool. If `begin` returns a claim, the function has to run; then `end` stores how it ended.

    At the end of `with bound` the call is over, or its id is free for the same call again.
    """

    def __init__(self, tool: Tool[Any, Any], run: Run[Any], slot: Slot, arguments: Any, kwargs: dict[str, Any]) -> None:
        self._tool, self._run, self._slot, self._arguments, self._kwargs = tool, run, slot, arguments, kwargs
        self._id = run._anew(slot.id) if tool.policy == "readOnly" else slot.id
        self._result: Any = None

    def __enter__(self) -> BoundCall:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None or issubclass(kind, CallFailed):
            self._slot.done()
        else:
            self._slot.reopen()

    @property
    def result(self) -> Any:
        """The result, decoded as the function is annotated."""
        return _codec.decode(_codec.return_type(self._tool.function), self._result)

    def keyed(self, begun: Begun) -> dict[str, Any]:
        """The keyword arguments of the function, with the call's key if it wants it."""
        return {**self._kwargs, "key": begun.key} if self._tool._has_key else self._kwargs

    def begin(self) -> Begun | None:
        """Claims the call; `None` if it is over and `result` is there. It asks the probe of an uncertain call."""
        for number in range(1, 1_000):
            id = self._id if number == 1 else f"{self._id}.r{number}"
            try:
                begun = self._run._calls.begin(id, self._tool.policy, None, self._arguments, self._tool._approval)
            except CallFailed as failed:
                if failed.result == NOT_DONE:
                    continue
                raise
            except Uncertain as uncertain:
                if self._tool.probe is None or uncertain.call["state"] != "started":
                    raise
                done, self._result = _probe(self._run, self._tool, uncertain.call)
                if done:
                    return None
                continue
            self._result = begun.result
            return begun if begun.must_run else None
        raise AssertionError("a probe has found a thousand times that nothing took effect")

    def end(self, begun: Begun, outcome: str, result: Any) -> None:
        """Records how the function ended."""
        self._result = _json.copy(result)
        self._run._calls.end(begun, outcome, self._result)


def probe_stored(run: Run[Any], call: Mapping[str, Any]) -> None:
    """Asks the probe of an unsettled call, if its tool is known: the second part of the call's id is the tool's name."""
    for name, known in _tools.items():
        if known.probe is not None and (call["id"].partition(".")[2].startswith(f"{name}.") or call.get("tool") == name):
            _probe(run, known, call)
            return


def _probe(run: Run[Any], tool: Tool[Any, Any], call: Mapping[str, Any]) -> tuple[bool, Any]:
    """Asks the probe, and settles the call. Returns whether it took effect, and its result."""
    assert tool.probe is not None
    arguments = dict(call.get("arguments") or {})
    if "key" in inspect.signature(tool.probe).parameters:
        arguments["key"] = call["key"]
    try:
        found = tool.probe(**arguments)
        result = _json.copy(_run_coroutine(found) if inspect.iscoroutine(found) else found)
    except CallFailed:
        run.settle(call["id"], "failed", "the probe found that nothing took effect", NOT_DONE)
        return False, None
    run.settle(call["id"], "completed", "the probe found the effect", result)
    return True, result


def _run_coroutine(coroutine: Any) -> Any:
    """Runs a probe that is a coroutine. In an asynchronous agent this is the thread of its requests."""
    import asyncio

    return asyncio.run(coroutine)
