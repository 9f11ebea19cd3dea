"""Methods that do the same as those below them, in the thread of the requests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from dalsegno._portal import Portal

P = ParamSpec("P")
R = TypeVar("R")


def forwarded(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A coroutine method with the name, the parameters and the docstring of this one. It calls the method of
    `self.sync` through `self._portal`."""

    @functools.wraps(method)
    async def forward(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        portal: Portal = self._portal
        below: Callable[P, R] = getattr(self.sync, method.__name__)
        return await portal.call(below, *args, **kwargs)

    return forward
