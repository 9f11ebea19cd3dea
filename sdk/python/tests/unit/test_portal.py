"""All that is sent for a run is sent by one thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import dalsegno
from dalsegno._portal import Portal
from dalsegno._transport import Transport
from dalsegno.testing.memory import MemoryGateway


@dalsegno.tool(policy="retrySameKey")
async def look(n: int) -> int:
    await asyncio.sleep(0)
    return n


def test_calls_of_asynchronous_tools_queue_in_the_portal_of_the_run(
    dalsegno_gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    senders = set()
    send: Any = Transport.send

    def seen(transport: Transport, path: str, *args: Any, **kwargs: Any) -> Any:
        if path.startswith("calls/"):
            senders.add(threading.current_thread())
        return send(transport, path, *args, **kwargs)

    async def three() -> list[int]:
        return [*await asyncio.gather(look(1), look(2), look(3))]

    monkeypatch.setattr(Transport, "send", seen)
    with dalsegno.attach(heartbeat=False, sigterm=False) as run, run.turn() as turn:
        assert asyncio.run(three()) == [1, 2, 3]
        turn.finish()
    assert len(senders) == 1 and Portal.of(run) is run._portal
    assert threading.current_thread() not in senders


class _Taken(Portal):
    """The loop takes what has ended the process as soon as the thread of the requests has looked at it once."""

    looks: int
    leave: Any

    @property
    def _leave(self) -> Any:
        self.looks += 1
        return self.leave if self.looks == 1 else None

    @_leave.setter
    def _leave(self, leave: Any) -> None:
        self.looks, self.leave = 0, leave


def test_a_request_whose_end_the_loop_takes_at_the_same_time_raises_it() -> None:
    portal = _Taken()
    portal._leave = dalsegno.Parked("over")
    with pytest.raises(dalsegno.Parked):
        asyncio.run(portal.call(lambda: 1))
    portal.close()


def test_what_has_ended_the_process_is_raised_by_the_next_call_and_by_no_other() -> None:
    def leaves() -> None:
        raise dalsegno.Parked("over")

    async def calls() -> int:
        leaving = asyncio.ensure_future(portal.call(leaves))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        with pytest.raises(dalsegno.Parked):
            await portal.call(lambda: 1)
        return await portal.call(lambda: 2)

    portal = Portal()
    assert asyncio.run(calls()) == 2
    portal.close()
