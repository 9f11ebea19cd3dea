"""What steps, tools and turns have spent."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from dalsegno._errors import NotAttached

_spending: ContextVar[dict[str, int]] = ContextVar("dalsegno.spending")


@contextmanager
def spending(usage: dict[str, int]) -> Generator[None, None, None]:
    """Here, and in the tasks and threads that are started here with this context, `spent` adds to this usage."""
    token = _spending.set(usage)
    try:
        yield
    finally:
        _spending.reset(token)


def spent(*, tokens_in: int = 0, tokens_out: int = 0, tool_calls: int = 0, cost_micro_usd: int = 0) -> None:
    """Adds to what the step or the tool that runs here has spent. `cost_micro_usd`: millionths of a US dollar.

    It counts as soon as the result is stored, and once, also if the turn is replayed or never committed; a limit of the
    run sees it at once. So leave it out of `Turn.spent`. A call whose outcome stays unknown counts nothing. On an older
    gateway it counts with the next boundary of this process.

    Errors: `NotAttached` outside of a step and of a tool.
    """
    usage = _spending.get(None)
    if usage is None:
        raise NotAttached("`spent` is called in a step or in a tool; in a turn it is `turn.spent`")
    more = of(tokens_in, tokens_out, tool_calls, cost_micro_usd)
    usage.update(add(usage, more))


def of(tokens_in: int, tokens_out: int, tool_calls: int, cost_micro_usd: int) -> dict[str, int]:
    """A usage, as the contract has it."""
    amounts = {"tokensIn": tokens_in, "tokensOut": tokens_out, "toolCalls": tool_calls, "costMicroUSD": cost_micro_usd}
    return {name: amount for name, amount in amounts.items() if amount}


def add(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """What both have spent together."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
