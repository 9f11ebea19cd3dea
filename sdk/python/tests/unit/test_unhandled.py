"""An error that is carried out of a framework: the end of the turn raises it."""

import asyncio
import sys

import pytest

import dalsegno
import dalsegno.aio
from dalsegno.testing.memory import MemoryGateway


def test_the_end_of_a_turn_raises_what_a_task_carries(dalsegno_gateway: MemoryGateway) -> None:
    with pytest.raises(dalsegno.Parked):
        with dalsegno.attach(heartbeat=False, sigterm=False) as run, run.turn():
            raise dalsegno.Unhandled(dalsegno.Parked("the run waits"))
    assert dalsegno_gateway.rows.head is None


def test_an_error_passes_a_handler_of_exceptions_and_keeps_its_cause(dalsegno_gateway: MemoryGateway) -> None:
    cause = OSError("the line is dead")

    def framework() -> None:
        try:
            try:
                raise ConnectionError("the answer is lost") from cause
            except ConnectionError as error:
                raise dalsegno.Unhandled(error) from error
        except Exception:
            pytest.fail("the framework has read it")

    with pytest.raises(ConnectionError, match="the answer is lost") as raised:
        with dalsegno.attach(heartbeat=False, sigterm=False) as run, run.turn():
            framework()
    assert raised.value.__cause__ is cause
    assert dalsegno_gateway.rows.head is None


def test_the_end_of_an_asynchronous_turn_raises_it_too(dalsegno_gateway: MemoryGateway) -> None:
    async def task() -> None:
        raise dalsegno.Unhandled(dalsegno.Suspended("a person has suspended the run"))

    async def main() -> None:
        async with await dalsegno.aio.attach(heartbeat=False, sigterm=False) as run:
            async with run.turn():
                await asyncio.create_task(task())

    with pytest.raises(dalsegno.Suspended):
        asyncio.run(main())


def test_it_is_found_in_groups_of_errors() -> None:
    leave = dalsegno.Parked("the run waits")
    assert dalsegno.Unhandled.find(ValueError()) is None and dalsegno.Unhandled.find(None) is None
    assert dalsegno.Unhandled.find(dalsegno.Unhandled(leave)) is leave
    if sys.version_info >= (3, 11):
        group = BaseExceptionGroup("tasks", [ValueError(), BaseExceptionGroup("more", [dalsegno.Unhandled(leave)])])
        assert dalsegno.Unhandled.find(group) is leave
