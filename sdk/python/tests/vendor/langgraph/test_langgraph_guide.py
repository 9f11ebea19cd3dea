"""What docs/guides/langgraph.md says is true: its agent runs, and its table names the tests that are left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage

from dalsegno.testing.memory import MemoryGateway
from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall
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


ASKS = """
from types import SimpleNamespace
from langchain_openai import ChatOpenAI
bank = SimpleNamespace(refund=lambda order, cents, idempotency_key: print(f"PAID {order}\\n", end="", flush=True) or "paid")
"""
CENTS = {"A": 9, "B": 9000, "C": 8000}


@pytest.mark.parametrize(("orders", "denied"), [("ABC", "B"), ("B", "B")])
def test_the_node_that_asks_about_several_calls_leaves_an_answer_for_each(
    tmp_path: Path, orders: str, denied: str
) -> None:
    agent, review = re.findall(r"```python\n(import dalsegno.*?|from langchain_core.*?)```", GUIDE.read_text(), re.DOTALL)
    head, graph, end = re.split(r"(?=^    graph = |^    graph\.add_edge\(START)", agent, flags=re.MULTILINE)
    imports, functions, wiring = re.split(r"(?=^def review|^graph\.add_node)", review, flags=re.MULTILINE)
    end = re.sub(r".*tools_condition.*\n", "", end)
    client = 'model = ChatOpenAI(model="m", max_retries=0).bind_tools([refund])\n'
    head = head.replace("def think", f"{client}\ndef think")
    program = tmp_path / "agent.py"
    program.write_text("".join([imports, ASKS, *with_functions(head, functions), graph, indent(wiring, "    "), end]))

    def decide(gateway: MemoryGateway) -> None:
        [id] = gateway.open_waits
        order = gateway.rows.waits[id].request["proposal"]["call"]["order"]
        gateway.deny(id, reason="too much") if order in denied else gateway.approve(id)

    calls = [ToolCall("refund", {"order": order, "cents": CENTS[order]}) for order in orders]
    script = [Reply(tool_calls=calls), Reply("Done.")]
    with MemoryGateway({"task": "Refund."}) as gateway, FakeOpenAI(script) as model:
        ended = gateway.run([program], environment=model.environment, timeout=300, answer=decide)
        assert gateway.finish and gateway.finish["output"] == {"answer": "Done."}, ended.output
        assert {*re.findall("PAID (.)", ended.output)} == {*orders} - {*denied}
        said = {it["tool_call_id"]: it["content"] for it in model.requests[-1]["messages"] if it["role"] == "tool"}
        assert len(said) == len(orders) and sum("denied by ann, too much" in it for it in said.values()) == len(denied)


def with_functions(head: str, functions: str) -> tuple[str, str, str]:
    """The agent up to its graph, with the functions of the node before `with`."""
    before, with_, rest = head.partition("with dalsegno.attach()")
    return before, functions, with_ + rest


def test_the_guide_names_the_tests_that_are_left_out_and_the_versions() -> None:
    plugin = ast.parse(Path(__file__).with_name("langgraph_swapped.py").read_text())
    assigned = {ast.unparse(node.targets[0]): node.value for node in plugin.body if isinstance(node, ast.Assign)}
    text = GUIDE.read_text()
    assert {*ast.literal_eval(assigned["LEFT_OUT"])} == {*re.findall(r"test_\w+", text)}
    pinned = (GUIDE.parents[2] / "deploy/examples/langgraph/requirements.txt").read_text()
    version = re.search(r"^langgraph==([\d.]+)$", pinned, re.MULTILINE)
    assert version and f"`langgraph` {version[1]}," in text
