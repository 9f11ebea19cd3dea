"""The agent of docs/guides/claude.md and its test, by copy and paste, with the real CLI."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk")

GUIDE = Path(__file__).parents[5] / "docs/guides/claude.md"

BANK = """
class bank:
    @staticmethod
    async def pay(order, cents, idempotency_key):
        return f"paid {cents} for {order}"
"""


@pytest.mark.skipif(not GUIDE.exists(), reason="the package is tested outside of its repository")
def test_the_test_of_the_guide_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    [test] = [block for block in blocks if "def test_it_pays" in block]
    (tmp_path / "agent.py").write_text(BANK + blocks[0])
    monkeypatch.chdir(tmp_path)
    # On a busy machine the CLI starts later than in the minute that a process has by default.
    patient = test.replace("environment=model.environment", "environment=model.environment, timeout=300")
    names: dict[str, Any] = {}
    exec(compile(patient, str(GUIDE), "exec"), names)
    names["test_it_pays"]()
