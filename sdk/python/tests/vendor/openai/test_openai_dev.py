"""The example under `dalsegno dev --kill-every`: a real gateway, real processes, and a kill every few seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("agents.memory", reason="openai-agents is not installed: hack/adapters.sh runs these tests")

from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall
from kills import survive_kills
from openai_world import EXAMPLE, Bank

BILLS = {"paper": ("Bird & Sons", 4200), "heating": ("Warm Ltd", 31900), "roof": ("Slate & Co", 98000)}
SCRIPT = [
    *[Reply("", [ToolCall("pay", {"bill": name, "to": to, "cents": cents})]) for name, (to, cents) in BILLS.items()],
    Reply("All bills are settled."),
]
NOTES = sorted(f"{name}: {cents} to {to}" for name, (to, cents) in BILLS.items())


@pytest.fixture
def bank() -> Iterator[Bank]:
    bank = Bank()
    yield bank
    bank.close()


def test_the_example_survives_kills_and_waits_for_a_person(tmp_path: Path, bank: Bank) -> None:
    if not EXAMPLE.exists():
        pytest.skip("the package is tested outside of its repository")
    input = {"bills": list(BILLS), "ledger": bank.url}
    with FakeOpenAI(SCRIPT) as model:
        environment = {**model.environment, "PAY_SECONDS": "3"}
        run = survive_kills(EXAMPLE, tmp_path, input, environment, r"3\.pay\.")
        assert run.kills > 0 and run.approved == 1, run.output
        assert sorted(bank.booked.values()) == NOTES
        assert len(model.requests) <= run.asked_at_most(len(SCRIPT))
