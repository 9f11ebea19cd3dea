"""A stand-in for Claude's model: it says the same in each attempt, and costs nothing.

python3 fake_model.py 8091        # a server of its own, which outlives the agent. The agent uses it with FAKE_MODEL=http://…
"""

import os
import sys

from dalsegno.testing.models import FakeAnthropic, Reply, ToolCall

SCRIPT = [
    Reply("I look at the invoices.", tool_calls=[ToolCall("mcp__accounts__list_invoices")]),
    Reply("I pay the first one.", tool_calls=[ToolCall("mcp__accounts__pay_invoice", {"number": "A-17", "cents": 12_000})]),
    Reply("I pay the second one.", tool_calls=[ToolCall("mcp__accounts__pay_invoice", {"number": "A-18", "cents": 48_900})]),
    Reply("Both invoices are paid."),
]


def environment() -> dict[str, str]:
    """Variables for the CLI: of the server that FAKE_MODEL names, or of one in this process."""
    url = os.environ.get("FAKE_MODEL")
    return FakeAnthropic.environment_of(url) if url else FakeAnthropic(SCRIPT).environment


if __name__ == "__main__":
    FakeAnthropic(SCRIPT, host="0.0.0.0", port=int(sys.argv[1])).wait()
