"""The example under `dalsegno dev --kill-every`: a real gateway, real processes, and a kill every few seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("agents.memory", reason="openai-agents is not installed: hack/adapters.sh runs these tests")

from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall
from openai_world import EXAMPLE, SOURCE, Bank

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


@pytest.mark.slow
def test_the_example_survives_kills_and_waits_for_a_person(tmp_path: Path, bank: Bank) -> None:
    program = os.environ.get("DALSEGNO_BIN")
    if program is None or not EXAMPLE.exists():
        pytest.skip("DALSEGNO_BIN names no `dalsegno`: no real gateway is tested")
    # A process needs seconds to import the SDK, and many on a busy machine. Three payments take longer than one interval,
    # so that one of them is hit.
    begun = time.monotonic()
    environment = {**os.environ, "OPENAI_AGENTS_DISABLE_TRACING": "1", "PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, "-c", "import agents, dalsegno.openai"], env=environment, check=True)
    interval = max(6, round(3 * (time.monotonic() - begun)))
    (tmp_path / "input").write_text(json.dumps({"bills": list(BILLS), "ledger": bank.url}))
    with FakeOpenAI(SCRIPT) as model, (tmp_path / "log").open("w") as log:
        environment |= {**model.environment, "PAY_SECONDS": str(interval / 2.5)}
        command = [program, "dev", "--input", "input", "--kill-every", f"{interval}s", "--", sys.executable, str(EXAMPLE)]
        dev = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        try:
            end = time.monotonic() + 600 + 20 * interval
            while dev.poll() is None and time.monotonic() < end:
                # Nothing is open at first, and afterwards nothing is open any more: then this changes nothing.
                subprocess.run([program, "dev", "approve", "3.pay.call_2_0"], cwd=tmp_path, capture_output=True, timeout=120)
                time.sleep(1)
        finally:
            dev.terminate()
            dev.wait(timeout=120)
    output = (tmp_path / "log").read_text()
    assert dev.returncode == 0, output
    assert sorted(bank.booked.values()) == NOTES
    kills = output.count("killed by --kill-every")
    assert kills > 0, f"nobody was killed:\n{output}"
    assert len(model.requests) <= len(SCRIPT) + kills
