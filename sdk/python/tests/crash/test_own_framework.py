"""The adapter of docs/guides/your-own-framework.md: its files are written out, and its test runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2]
GUIDE = PACKAGE.parents[1] / "docs" / "guides" / "your-own-framework.md"
FILES = {"tiny.py", "tiny_durable.py", "agent.py", "test_agent.py"}

SHOP = '''
from pathlib import Path

PAYMENTS = Path(__file__).with_name("payments")

class Bank:
    """It takes each key once, and every request: a repeated payment has the same key."""

    def pay(self, to, key):
        with PAYMENTS.open("a") as file:
            file.write(f"{key}\\n")
        return f"{to} is paid"

    def payments(self):
        return set(PAYMENTS.read_text().split())

    def clear(self):
        PAYMENTS.write_text("")

bank = Bank()

def model(messages):
    """Another id in each process: only a stored answer has the same one."""
    import uuid
    if len(messages) == 1:
        return {"role": "assistant", "content": "", "calls": [{"id": uuid.uuid4().hex, "name": "pay", "arguments": {"to": "Ann"}}]}
    return {"role": "assistant", "content": f"{messages[-1]['content']}.", "calls": []}
'''

CONFTEST = """
import pytest
from shop import bank as the_bank

@pytest.fixture
def bank():
    return the_bank
"""


@pytest.mark.skipif(not GUIDE.exists(), reason="the package is tested outside of its repository")
def test_the_adapter_of_the_guide_survives_a_kill_at_each_request(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert {name for name, _ in blocks} == FILES
    for name, text in [*blocks, ("shop.py", SHOP), ("conftest.py", CONFTEST)]:
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE / 'src'}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "dalsegno.testing.plugin", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0 and "1 passed" in ended.stdout, ended.stdout + ended.stderr
