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
FILES = {"tiny.py", "tiny_durable.py", "agent.py", "shop.py", "conftest.py", "test_agent.py"}
CARRIES = "            raise dalsegno.Unhandled(error) from error"


pytestmark = pytest.mark.skipif(not GUIDE.exists(), reason="the package is tested outside of its repository")


def test_the_adapter_of_the_guide_passes_the_tests_of_the_guide(tmp_path: Path) -> None:
    ended = run_tests(tmp_path, files_of_the_guide())
    assert ended.returncode == 0 and "3 passed" in ended.stdout, ended.stdout + ended.stderr


def test_the_guide_tests_that_no_error_of_a_tool_is_swallowed(tmp_path: Path) -> None:
    files = files_of_the_guide()
    assert files["tiny_durable.py"].count(CARRIES) == 1
    files["tiny_durable.py"] = files["tiny_durable.py"].replace(CARRIES, "            raise")
    ended = run_tests(tmp_path, files, "-k", "never_reads")
    assert ended.returncode == 1 and "1 failed" in ended.stdout, ended.stdout + ended.stderr


def files_of_the_guide() -> dict[str, str]:
    files = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", GUIDE.read_text(), re.DOTALL))
    assert files.keys() == FILES
    return files


def run_tests(folder: Path, files: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the tests of the guide in a folder with these files."""
    for name, text in files.items():
        (folder / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE / 'src'}{os.pathsep}{folder}"}
    plugins = ["-p", "no:cacheprovider", "-p", "dalsegno.testing.plugin"]
    command = [sys.executable, "-m", "pytest", *plugins, *options, str(folder)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
