"""What steps, tools and turns have spent."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from dalsegno._errors import NotAttached

_spending: ContextVar[dict[str, int]] = ContextVar("dalsegno.spending")

_lock = threading.Lock()


@contextmanager
def spending(usage: dict[str, int]) -> Generator[None, None, None]:
    """Here, and in the tasks and threads that are started here with this context, `spent` adds to this usage."""
    token = _spending.set(usage)
    try:
        yield
    finally:
        _spending.reset(token)


def current() -> dict[str, int] | None:
    """The usage of the call of the step or tool in which this code runs; `None` outside of these."""
    return _spending.get(None)


def spent(*, tokens_in: int = 0, tokens_out: int = 0, tool_calls: int = 0, cost_micro_usd: int = 0) -> None:
    """Adds to what the step or the tool that runs here has spent. `cost_micro_usd`: millionths of a US dollar.

    It counts as soon as the result is stored, and once, also if the turn is replayed or never committed; a limit of the
    run sees it at once. So leave it out of `Turn.spent`. A call whose outcome stays unknown counts nothing.

    What a tool spends that runs after its probe has found no effect counts with the next boundary of this process. On a
    gateway before version 3 so does all of it. `Run.finish` with no turn held back is no boundary: what no boundary has
    counted before it is lost.

    Errors: `NotAttached` outside of a step and of a tool.
    """
    usage = _spending.get(None)
    if usage is None:
        raise NotAttached("`spent` is called in a step or in a tool; in a turn it is `turn.spent`")
    add_to(usage, of(tokens_in, tokens_out, tool_calls, cost_micro_usd))


def of(tokens_in: int, tokens_out: int, tool_calls: int, cost_micro_usd: int) -> dict[str, int]:
    """A usage, as the contract has it."""
    amounts = {"tokensIn": tokens_in, "tokensOut": tokens_out, "toolCalls": tool_calls, "costMicroUSD": cost_micro_usd}
    return {name: amount for name, amount in amounts.items() if amount}


def add(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """What both have spent together."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def add_to(usage: dict[str, int], more: Mapping[str, int]) -> None:
    """Adds to a usage. Several threads may do it at the same time."""
    with _lock:
        usage.update(add(usage, more))


def take(usage: dict[str, int]) -> dict[str, int]:
    """What was added so far. The usage is empty then. `add_to` gives it back."""
    with _lock:
        taken = {**usage}
        usage.clear()
    return taken
