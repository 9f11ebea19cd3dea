"""An attempt that is replaced while it runs. Both are in this process."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

pytest.importorskip("agents.memory", reason="openai-agents is not installed: hack/adapters.sh runs these tests")

from agents import Agent, function_tool
from agents.testing import ScriptedModel

import dalsegno.aio
from dalsegno import _leave
from dalsegno.openai import RecordSession, call_key, guard, run_agent
from dalsegno.testing.memory import MemoryGateway
from openai_world import Run, calls, gateway, says


def stored(gateway: MemoryGateway) -> str:
    """All rows that a worker writes."""
    rows = gateway.rows
    return repr((rows.head, rows.channels, rows.events, rows.usage, rows.calls, rows.waits, rows.records, rows.messages))


class Fenced(SystemExit):
    """Stands for the end of the process, so that both attempts fit into one."""


def test_every_write_of_an_attempt_that_is_replaced_is_refused(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old attempt is in a tool while the new one runs to the end. Then it tries to write in each of the ways."""

    def fence(code: str, detail: str) -> None:
        raise Fenced(code)

    monkeypatch.setattr(_leave, "exit_over", fence)
    booked: list[str] = []
    reached, replaced = asyncio.Event(), asyncio.Event()

    @function_tool
    async def pay() -> str:
        booked.append(call_key())
        if len(booked) == 1:
            reached.set()
            await replaced.wait()
        return "paid"

    model = ScriptedModel([calls("pay"), says()])

    def payer(run: Run) -> Agent[Any]:
        return guard(run, Agent(name="a", model=model, tools=[pay]), pay="retrySameKey")

    async def main() -> None:
        gateway.start_attempt()
        os.environ.update(gateway.environment)
        old = await dalsegno.aio.attach(heartbeat=False, sigterm=False)
        agent, session = payer(old), RecordSession(old)
        running = asyncio.create_task(_outcome(run_agent(old, agent, "go", session=session)))
        await reached.wait()
        gateway.end_attempt()
        gateway.start_attempt()
        os.environ.update(gateway.environment)
        async with await dalsegno.aio.attach(heartbeat=False, sigterm=False) as new:
            assert (await run_agent(new, payer(new), "go", session=RecordSession(new))).final_output == "done"
            before = stored(gateway)
            replaced.set()
            assert isinstance(await running, Fenced)
            writes = [
                run_agent(old, payer(old), "go", id="other"),
                session.add_items([{"role": "user", "content": "late"}]),
                session.clear_session(),
                old.wait("late", "approval", title="late", proposal=1),
                old.commit(old.next_turn, state={}),
                old.park(),
                old.finish(),
            ]
            for write in writes:
                assert isinstance(await _outcome(write), Fenced)
            assert stored(gateway) == before
            await new.finish()
        old.sync._leave()

    async def _outcome(work: Any) -> Any:
        try:
            return await work
        except BaseException as error:
            return error

    asyncio.run(main())
    assert len(booked) == 2 and len(set(booked)) == 1 and len(model.calls) == 2
