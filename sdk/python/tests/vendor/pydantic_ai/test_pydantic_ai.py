"""The module `dalsegno.pydantic_ai` against the gateway in memory: kill -9, replay, names."""

from __future__ import annotations

from pathlib import Path


from dalsegno.testing.memory import MemoryGateway
from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall

AGENTS = Path(__file__).parent / "agents"

SCRIPT = [
    Reply(tool_calls=[ToolCall("search", {"item": "nails"})]),
    Reply(tool_calls=[ToolCall("pay", {"order": "nails", "cents": 500})]),
    Reply("Bought the nails."),
]


def test_kill_in_the_second_tool_asks_the_model_nothing_again(tmp_path: Path) -> None:
    ledger, log = tmp_path / "ledger", tmp_path / "log"
    ledger.touch()
    with MemoryGateway() as gateway, FakeOpenAI(SCRIPT) as model:
        environment = {**model.environment, "LEDGER": str(ledger), "LOG": str(log), "DIE_IN_PAY": "1"}
        ended = gateway.run([AGENTS / "buyer.py"], environment=environment)
        assert ended.exit_codes == [-9, 0], ended.output
        assert gateway.finish is not None and gateway.finish["output"] == {"answer": "Bought the nails."}
        assert len(model.requests) == 3
        assert log.read_text().splitlines() == ["search nails", "pay nails", "pay nails"]
        assert len(ledger.read_text().splitlines()) == 1
