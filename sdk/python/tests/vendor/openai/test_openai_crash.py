"""The example `deploy/examples/openai`, killed by -9: each payment is booked once, and no turn is committed twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("agents", reason="openai-agents is not installed: hack/adapters.sh runs these tests")

from dalsegno.testing.memory import CrashPoint, Ended, MemoryGateway
from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall
from openai_world import EXAMPLE, Bank

pytestmark = pytest.mark.skipif(not EXAMPLE.exists(), reason="the package is tested outside of its repository")

PAPER = {"bill": "paper", "to": "Bird & Sons", "cents": 4200}
SCRIPT = [
    Reply("", [ToolCall("find_bill", {"name": "paper"})]),
    Reply("", [ToolCall("pay", PAPER)]),
    Reply("The bill is paid."),
]
NOTE = "paper: 4200 to Bird & Sons"


@pytest.fixture
def bank() -> Iterator[Bank]:
    bank = Bank()
    yield bank
    bank.close()


def run(gateway: MemoryGateway, model: FakeOpenAI, **more: Any) -> Ended:
    environment = {**model.environment, "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    return gateway.run([EXAMPLE], environment=environment, **more)


def test_an_agent_that_is_killed_in_a_tool_goes_on_without_asking_the_model_again(bank: Bank) -> None:
    with MemoryGateway({"bills": ["paper"], "ledger": bank.url}) as gateway, FakeOpenAI(SCRIPT) as model:

        def kill_once() -> None:
            bank.on_booked = lambda: None
            gateway._processes.kill()

        bank.on_booked = kill_once
        ended = run(gateway, model)
        assert ended.exit_codes == [-signal.SIGKILL, 0], ended.output
        assert gateway.finish and gateway.finish["output"] == "The bill is paid."
        assert list(bank.booked.values()) == [NOTE]
        assert bank.posts == 2, "the tool has run again, under the same key"
        assert len(model.requests) == len(SCRIPT)
