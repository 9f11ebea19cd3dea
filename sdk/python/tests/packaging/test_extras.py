"""Each extra in a fresh environment: its module, the agent of its guide, and its example, all by copy and paste.

These tests ask the registry for the frameworks, so they are slow: `make adapters` runs them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conftest import dev_program
from dalsegno.testing.models import FakeAnthropic, FakeOpenAI, Reply, ToolCall
from installed import EXAMPLES, GUIDES, REPOSITORY, Built, Environment, as_main, blocks, built, dev, environment, in_repository

__all__ = ["built"]
pytestmark = [
    pytest.mark.slow,
    in_repository,
    pytest.mark.skipif(os.environ.get("DALSEGNO_ADAPTERS") != "all", reason="it takes minutes: make adapters runs it"),
]

BANK = """
class bank:
    @staticmethod
    def {name}(order, cents, idempotency_key):
        print("PAID", order, cents, idempotency_key, flush=True)
        return "paid"
"""


@dataclass(frozen=True)
class Extra:
    """What a guide's reader has beside the guide: the model's client, and the names that its agent uses."""

    name: str
    prelude: str
    replies: list[Reply]
    input: Any
    module: str = ""
    also: tuple[str, ...] = ()
    """Packages that the extra does not bring: the client of a model."""

    @property
    def page(self) -> Path:
        return GUIDES / f"{self.module or self.name}.md"

    @property
    def example(self) -> Path:
        return EXAMPLES / (self.module or self.name) / "README.md"

    def model(self) -> FakeOpenAI | FakeAnthropic:
        return FakeAnthropic(self.replies) if self.name == "claude" else FakeOpenAI(self.replies)


PAY = {"order": "A-1", "cents": 5}
LANGGRAPH_MODEL = """
class model:
    @staticmethod
    def invoke(messages):
        from langchain_openai import ChatOpenAI
        return ChatOpenAI(model="gpt-5-mini").bind_tools([refund]).invoke(messages)
"""
ASYNC_BANK = BANK.format(name="pay").replace("def pay", "async def pay")
EXTRAS = [
    Extra(
        "langgraph",
        BANK.format(name="refund") + LANGGRAPH_MODEL,
        [Reply(tool_calls=[ToolCall("refund", PAY)]), Reply("done")],
        {"task": "Refund A-1."},
        also=("langchain-openai",),
    ),
    Extra(
        "claude",
        ASYNC_BANK,
        [Reply(tool_calls=[ToolCall("mcp__bank__pay", PAY)]), Reply("done")],
        {"task": "Pay A-1."},
    ),
    Extra(
        "openai",
        BANK.format(name="pay")
        + "from agents import function_tool\n@function_tool\ndef find_bill(bill: str) -> str:\n    return bill\n",
        [Reply(tool_calls=[ToolCall("pay", {"bill": "A-1", "cents": 5})]), Reply("done")],
        "Pay A-1.",
    ),
    Extra(
        "pydantic-ai",
        BANK.format(name="pay"),
        [Reply(tool_calls=[ToolCall("pay", PAY)]), Reply("done")],
        {"task": "Pay A-1."},
        module="pydantic_ai",
        also=("pydantic-ai-slim[openai]",),
    ),
]
PARTS = {
    "openai": (
        "session = ",
        "from agents import Agent\nfrom dalsegno.openai import RecordSession, guard, run_agent\n",
        'clerk = guard(run, Agent(name="Clerk"))\n',
        'print("RESULT", json.dumps([first.final_output, second.final_output]))',
    ),
    "pydantic-ai": (
        "store = ",
        """from dalsegno.pydantic_ai import Durability, RecordConversationStore
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
agent, question = Agent("openai:gpt-5.2", name="helper", capabilities=[Durability(tools={})]), "How?"
""",
        "",
        'print("RESULT", json.dumps([result.output]))',
    ),
}


@pytest.fixture(scope="module", params=EXTRAS, ids=lambda extra: extra.name)
def extra(request: pytest.FixtureRequest) -> Extra:
    found: Extra = request.param
    return found


@pytest.fixture(scope="module")
def installed(extra: Extra, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A fresh environment with the wheel and its extra."""
    began = time.monotonic()
    folder = tmp_path_factory.mktemp(extra.name) / "venv"
    made = environment(folder, f"dalsegno[{extra.name}] @ {built.wheel.as_uri()}", *extra.also, with_pip=True)
    print(f"TIMED {extra.name}: pip install took {time.monotonic() - began:.0f} s")
    return made


def test_the_extra_installs_and_its_module_imports(extra: Extra, installed: Environment, tmp_path: Path) -> None:
    installed.run("-m", "pip", "check")
    module = f"dalsegno.{extra.module or extra.name}"
    code = f"import {module} as it; [getattr(it, name) for name in it.__all__]; print(it.__file__)"
    assert installed.packages in Path(installed.run("-c", code, cwd=tmp_path).strip()).parents


def test_the_agent_of_the_guide_runs_by_copy_and_paste(extra: Extra, installed: Environment, tmp_path: Path) -> None:
    agent = blocks(extra.page, "python")[0]
    with extra.model() as model:
        program = extra.prelude + agent
        said, seconds = dev(dev_program(), installed, tmp_path, program, extra.input, **model.environment)
    assert len(re.findall(r"^PAID A-1 5 \S+$", said, re.MULTILINE)) == 1, said
    assert len(model.requests) == len(extra.replies)
    print(f"TIMED {extra.name}: the agent of the guide took {seconds:.1f} s")


def test_the_part_of_the_guide_runs_by_copy_and_paste(extra: Extra, installed: Environment, tmp_path: Path) -> None:
    if extra.name not in PARTS:
        pytest.skip("the guide has no other block that runs")
    begin, imports, before, after = PARTS[extra.name]
    [part] = [block for block in blocks(extra.page, "python") if block.startswith(begin)]
    program = as_main(f"import json\n{imports}", f"{before}{part}{after}", attach="")
    replies = lambda body: Reply("so")  # noqa: E731
    with FakeOpenAI(replies) as model:
        said, _ = dev(dev_program(), installed, tmp_path, program, **model.environment)
    assert re.search(r'^RESULT \["so"', said, re.MULTILINE), said


class Ledger:
    """Takes an entry for each key, once."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}
        ledger = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                entry = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                ledger.entries.setdefault(entry["key"], entry)
                self.send_response(201)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.place = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=[0.05], daemon=True).start()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger()
    yield ledger
    ledger.server.shutdown()
    ledger.server.server_close()


@pytest.fixture
def clone(tmp_path: Path, ledger: Ledger) -> Path:
    """A folder like a clone: what the examples need of it. Its ledger has a free port."""
    for name in ("sdk", "docs"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    for file in EXAMPLES.glob("*/*"):
        if file.is_file():
            copy = tmp_path / "deploy" / "examples" / file.parent.name / file.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(file.read_text().replace("127.0.0.1:8090", ledger.place))
    return tmp_path


def test_the_example_runs_by_copy_and_paste(
    extra: Extra, installed: Environment, clone: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Path(dev_program())
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    page = (clone / extra.example.relative_to(REPOSITORY)).read_text()
    [block] = [block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "dalsegno dev" in block]
    began = time.monotonic()
    paid = Example(block, installed, clone, extra).run()
    print(f"TIMED {extra.name}: the example took {time.monotonic() - began:.0f} s")
    notes = [entry["note"] for entry in ledger.entries.values()] + paid
    expected = {"langgraph": 3, "claude": 2, "openai": 3, "pydantic-ai": 1}[extra.name]
    assert len(notes) == len(set(notes)) == expected, notes


class Example:
    """The block of a README: what is typed into the first terminal, and what into another one while the agent runs."""

    def __init__(self, block: str, where: Environment, clone: Path, extra: Extra) -> None:
        self.where, self.clone, self.extra = where, clone, extra
        lines = [re.sub(r"\s+#.*", "", line) for line in block.splitlines() if line]
        self.answers = [line for line in lines if line.startswith("dalsegno dev approve")]
        at = next(at for at, line in enumerate(lines) if " -- " in line)
        # A process that has not started its framework after 10 s, on a busy machine, would never get anywhere.
        self.before, self.dev = lines[:at], lines[at].replace("10s", f"{self.seconds_to_start()}s")
        self.after = [line for line in lines[at + 1 :] if line not in self.answers]
        folders = [line.removeprefix("cd ") for line in self.before if line.startswith("cd ")]
        self.folder = clone / folders[0] if folders else clone

    def seconds_to_start(self) -> int:
        """Four times as long as the example needs to import its framework, and at least 10 s."""
        began = time.monotonic()
        self.where.run("-c", f"import dalsegno.{self.extra.module or self.extra.name}")
        return max(10, round(4 * (time.monotonic() - began)))

    def run(self) -> list[str]:
        """Types everything. Returns the lines that the last commands print."""
        script = "\n".join(["set -e", *self.before, self.dev, "echo THE END", *self.after])
        log = self.clone / "log"
        with log.open("w") as file:
            shell = subprocess.Popen(["bash", "-c", script], cwd=self.clone, env=self.where.variables(), stdout=file, stderr=file)
        try:
            end = time.monotonic() + 600
            while shell.poll() is None:
                assert time.monotonic() < end, log.read_text()
                time.sleep(1)
                self.answer()
        finally:
            shell.terminate()
            shell.wait()
        said = log.read_text()
        assert shell.returncode == 0, said
        return [json.loads(line)["note"] for line in said.partition("THE END\n")[2].splitlines()]

    def answer(self) -> None:
        """Types what a person types: shows what is open, and approves it, by the id of the page or by the one that is shown."""
        if not self.answers:
            return
        open_ids = re.findall(r"^(\S+): the agent asks", self.type("dalsegno dev approve"), re.MULTILINE)
        for id in open_ids:
            written = [line for line in self.answers if "lg:…" in line or f" {id}" in line]
            # A page whose comment says `dalsegno dev approve ID` has no line for it.
            line = written[0] if written else f"dalsegno dev approve {id}"
            self.type(line.replace("lg:…", id))

    def type(self, line: str) -> str:
        ended = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=self.where.variables(), capture_output=True, text=True, timeout=120
        )
        return ended.stdout
