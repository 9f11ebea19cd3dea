"""A `SystemExit` in a task of a framework: the end of the turn raises it."""

import asyncio
import sys

import pytest

import dalsegno
import dalsegno.aio
from dalsegno._errors import DeferredLeave
from dalsegno.testing.memory import MemoryGateway


def test_the_end_of_a_turn_raises_what_a_task_carries(dalsegno_gateway: MemoryGateway) -> None:
    with pytest.raises(dalsegno.Parked):
        with dalsegno.attach(heartbeat=False, sigterm=False) as run, run.turn():
            raise DeferredLeave(dalsegno.Parked("the run waits"))
    assert dalsegno_gateway.rows.head is None


def test_the_end_of_an_asynchronous_turn_raises_it_too(dalsegno_gateway: MemoryGateway) -> None:
    async def task() -> None:
        raise DeferredLeave(dalsegno.Suspended("a person has suspended the run"))

    async def main() -> None:
        async with await dalsegno.aio.attach(heartbeat=False, sigterm=False) as run:
            async with run.turn():
                await asyncio.create_task(task())

    with pytest.raises(dalsegno.Suspended):
        asyncio.run(main())


def test_it_is_found_in_groups_of_errors() -> None:
    leave = dalsegno.Parked("the run waits")
    assert DeferredLeave.find(ValueError()) is None and DeferredLeave.find(None) is None
    assert DeferredLeave.find(DeferredLeave(leave)) is leave
    if sys.version_info >= (3, 11):
        group = BaseExceptionGroup("tasks", [ValueError(), BaseExceptionGroup("more", [DeferredLeave(leave)])])
        assert DeferredLeave.find(group) is leave
