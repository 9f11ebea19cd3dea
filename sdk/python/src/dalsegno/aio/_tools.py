"""Calls of tools that are an `async def`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from dalsegno._errors import CallFailed, KeyRefused
from dalsegno._portal import Portal
from dalsegno._run import Run
from dalsegno._tools import BoundCall, Tool


async def call_tool(run: Run[Any], tool: Tool[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Makes a call of a tool that is an `async def`."""
    return await make(Portal.of(run), tool.bind(run, args, kwargs))


async def make(portal: Portal, bound: BoundCall) -> Any:
    """Makes a call of a tool, and returns the result. The function runs on the loop."""
    with bound:
        begun = await portal.call(bound.begin)
        if begun is not None:
            try:
                with begun.running():
                    result = await value_of(bound.run_function(begun))
            except (CallFailed, KeyRefused) as refusal:
                await portal.call(bound.end, begun, refusal.outcome, refusal.result)
                raise
            await portal.call(bound.end, begun, "completed", result)
    return bound.result


async def value_of(value: Any) -> Any:
    """The value, awaited if it is awaitable."""
    return await value if inspect.isawaitable(value) else value
