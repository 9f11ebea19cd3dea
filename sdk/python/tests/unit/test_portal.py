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
