"""What docs/guides/langgraph.md says is true: its agent runs, and its table names the tests that are left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage

from dalsegno.testing.memory import MemoryGateway
from langgraph_attempts import call

GUIDE = Path(__file__).parents[5] / "docs/guides/langgraph.md"


class Bank:
    def __init__(self) -> None:
        self.paid: list[Any] = []

    def refund(self, order: str, cents: int, idempotency_key: str) -> str:
        self.paid.append((order, cents, idempotency_key))
        return "paid"


class Model:
    def __init__(self) -> None:
        self.replies = [call("refund", order="A-1", cents=5), AIMessage("It is refunded.")]

    def invoke(self, messages: Any) -> AIMessage:
        return self.replies.pop(0)


@pytest.mark.dalsegno(input={"task": "Refund A-1."})
def test_the_agent_of_the_guide_runs(dalsegno_gateway: MemoryGateway) -> None:
    block = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert block
    bank = Bank()
    exec(compile(block[1], str(GUIDE), "exec"), {"__name__": "guide", "bank": bank, "model": Model()})
    assert dalsegno_gateway.finish and dalsegno_gateway.finish["output"] == {"answer": "It is refunded."}
    assert bank.paid == [("A-1", 5, dalsegno_gateway.calls[0].key)]


def test_the_guide_names_the_tests_that_are_left_out_and_the_versions() -> None:
    plugin = ast.parse(Path(__file__).with_name("langgraph_swapped.py").read_text())
    assigned = {ast.unparse(node.targets[0]): node.value for node in plugin.body if isinstance(node, ast.Assign)}
    text = GUIDE.read_text()
    assert {*ast.literal_eval(assigned["LEFT_OUT"])} == {*re.findall(r"test_\w+", text)}
    pinned = (GUIDE.parents[2] / "deploy/examples/langgraph/requirements.txt").read_text()
    version = re.search(r"^langgraph==([\d.]+)$", pinned, re.MULTILINE)
    assert version and f"`langgraph` {version[1]}," in text
