"""Calls of the tools that an agent framework runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn, TypeAlias

from dalsegno._calls import Begun
from dalsegno._errors import CallFailed, Uncertain
from dalsegno._ordinals import Slot
from dalsegno._run import Run
from dalsegno._tools import BoundCall, Policy, Tool

Ask: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]
"""Asks a probe about a stored call. Returns the result to store, or raises `CallFailed` if nothing took effect."""

Send: TypeAlias = Callable[[Callable[[], Begun | None]], Awaitable[Begun | None]]
"""Runs a function in the thread of the requests."""


class _AgentTool(Tool[Any, Any]):
    """The tool of one call, which the framework runs. `Run.recover` does not know it, and leaves the call alone."""

    def __init__(self, name: str, policy: Policy, approval: str | None) -> None:
        self.name, self.policy, self.probe = name, policy, None
        self._approval = approval


class AgentCall(BoundCall):
    """One call of a tool that a framework runs, with its arguments as JSON. See `BoundCall`."""

    def __init__(
        self, run: Run[Any], slot: Slot, name: str, policy: Policy, arguments: Any, approval: str | None = None
    ) -> None:
        self.id = run._anew(slot.id) if policy == "readOnly" else slot.id
        super().__init__(_AgentTool(name, policy, approval), run, slot, self.id, arguments, arguments)

    @property
    def result(self) -> Any:
        """The result, as it is stored."""
        return self._result

    async def claim(self, send: Send, ask: Ask | None) -> Begun | None:
        """As `begin`, in the thread of the requests, for code on the loop. The probe is asked on the loop.

        In the other thread a probe could not use the clients of the agent, nor the run itself.
        """
        try:
            return await send(self.begin)
        except Uncertain as uncertain:
            if ask is None or uncertain.call["state"] != "started":
                raise
            probe = await _answered(ask, uncertain.call)
            return await send(partial(self._ask_probe, probe, uncertain.call))


async def _answered(ask: Ask, call: dict[str, Any]) -> Callable[[], Any]:
    """A probe that says what `ask` has found."""
    try:
        found = await ask(call)
    except CallFailed as failed:
        return partial(_raise, failed)
    return lambda: found


def _raise(error: Exception) -> NoReturn:
    raise error
