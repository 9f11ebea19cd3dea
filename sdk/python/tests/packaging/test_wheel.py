"""The plain package in a fresh environment: its files, its modules, and the examples of the guide by copy and paste."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import dev_program
from installed import (
    GUIDES,
    PACKAGE,
    Built,
    Environment,
    blocks,
    built,
    dev,
    environment,
    in_repository,
    results,
)

__all__ = ["built"]

FRAMEWORKS = ["claude", "langgraph", "openai", "pydantic_ai"]

LEDGER = '''
class ledger:
    @staticmethod
    def post(entry, idempotency_key):
        print("posted", entry["page"], entry["text"], idempotency_key)
        return {"id": idempotency_key}
'''

BUYER = '''
import json, os, urllib.request
from pathlib import Path
import dalsegno

@dalsegno.tool(policy="retrySameKey")
def pay(item, cents, *, key=""):
    with open("payments", "a") as file:
        file.write(f"{key}\\n")
    return cents

def chat(messages):
    body = json.dumps({"messages": messages}).encode()
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

def buy(item, cents):
    answer = run.approval("buy-1", {"item": item, "cents": cents}, title="Buy")
    return pay(item, (answer.changes or {"cents": cents})["cents"])

TOOLS = {"find_price": lambda item: 500, "buy": buy}

with dalsegno.attach(state=dict) as run:
    with run.turn() as turn:
        messages, answers = [{"role": "user", "content": run.input["item"]}], []
        while True:
            messages.append(turn.step("ask", chat, messages))
            if not messages[-1].get("tool_calls"):
                break
            for call in messages[-1]["tool_calls"]:
                answers.append(TOOLS[call["function"]["name"]](**json.loads(call["function"]["arguments"])))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(answers[-1])})
        turn.finish(output={"cents": answers[-1]})
'''

TESTS = '''
from pathlib import Path
import pytest

class Bank:
    """Its payments: one for each key."""
    @property
    def payments(self):
        return set(Path("payments").read_text().split())
    def clear(self):
        Path("payments").write_text("")

@pytest.fixture
def bank():
    return Bank()

'''


@pytest.fixture(scope="session")
def plain(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel, and nothing else."""
    return environment(tmp_path_factory.mktemp("plain") / "venv", "--no-index", str(built.wheel))


def test_the_source_distribution_and_the_wheel_hold_every_file(built: Built) -> None:
    sources = {str(file.relative_to(PACKAGE / "src")) for file in (PACKAGE / "src").rglob("*.py")} | {"dalsegno/py.typed"}
    assert sources <= set(zipfile.ZipFile(built.wheel).namelist())
    top = built.sdist.name.removesuffix(".tar.gz")
    with tarfile.open(built.sdist) as archive:
        held = set(archive.getnames())
    tests = {str(file.relative_to(PACKAGE)) for file in (PACKAGE / "tests").rglob("*.py")}
    assert {f"{top}/{name}" for name in tests | {"README.md", "LICENSE", "pyproject.toml"}} <= held
    assert {f"{top}/src/{name}" for name in sources} <= held


def test_a_fresh_environment_imports_every_module_that_needs_no_framework(plain: Environment, tmp_path: Path) -> None:
    code = """
import importlib, pathlib, dalsegno
top = pathlib.Path(dalsegno.__file__).parent
for file in sorted(top.rglob("*.py")):
    name = ".".join(file.relative_to(top.parent).with_suffix("").parts).removesuffix(".__init__")
    if name.split(".")[1:2] not in [["claude"], ["langgraph"], ["openai"], ["pydantic_ai"]] and not name.endswith(".plugin"):
        importlib.import_module(name)
        print(name)
"""
    imported = plain.run("-c", code, cwd=tmp_path).split()
    assert len(imported) > 40 and {"dalsegno.aio", "dalsegno.testing.memory", "dalsegno.testing.models"} <= {*imported}
    assert plain.packages in Path(plain.run("-c", "import dalsegno; print(dalsegno.__file__)", cwd=tmp_path)).parents


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_module_whose_framework_is_missing_does_not_import(plain: Environment, tmp_path: Path, framework: str) -> None:
    ended = subprocess.run([plain.python, "-c", f"import dalsegno.{framework}"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1 and "ModuleNotFoundError" in ended.stderr, ended.stderr


@in_repository
def test_the_agent_of_the_guide_runs_by_copy_and_paste(plain: Environment, tmp_path: Path) -> None:
    agent = blocks(GUIDES / "python.md", "python")[0]
    prelude = f"{LEDGER}\ndef model(state):\n    return f'page {{len(state)}}'\n"
    said, _ = dev(dev_program(), plain, tmp_path, prelude + agent, {"pages": 3})
    assert [line.split()[1] for line in said.splitlines() if line.startswith("posted")] == ["1", "2", "3"], said


@in_repository
def test_the_asynchronous_agent_of_the_guide_runs_by_copy_and_paste(plain: Environment, tmp_path: Path) -> None:
    [agent] = [block for block in blocks(GUIDES / "python.md", "python") if "dalsegno.aio.attach" in block]
    lines = "".join(f"    {line}\n" for line in agent.splitlines())
    program = f"""
import asyncio
import dalsegno.aio
{LEDGER.replace("def post", "async def post")}
async def model(state):
    return "once"

async def main():
{lines}
    print("RESULT", len(entries))

asyncio.run(main())
"""
    said, _ = dev(dev_program(), plain, tmp_path, program)
    assert [*results(said)] == [3], said


@pytest.fixture
def tested(tmp_path: Path) -> Iterator[Path]:
    """A folder with an agent, whose tests are those of the guide."""
    (tmp_path / "agent.py").write_text(BUYER)
    written = [block for block in blocks(GUIDES / "python.md", "python") if "def test_" in block]
    assert len(written) == 2
    (tmp_path / "test_agent.py").write_text(TESTS + "\n\n".join(written))
    yield tmp_path


@in_repository
def test_the_tests_of_the_guide_pass_by_copy_and_paste(plain: Environment, tested: Path) -> None:
    # This Python has pytest. The package that it sees is the installed one, with its plugin.
    variables = {**os.environ, "PYTHONPATH": str(plain.packages)}
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", str(tested)]
    ended = subprocess.run(words, cwd=tested, env=variables, capture_output=True, text=True, timeout=300)
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr
