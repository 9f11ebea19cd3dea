"""A stand-in for Claude's model: it says the same in each attempt, and costs nothing."""

from dalsegno.testing.models import FakeAnthropic, Reply, ToolCall

SCRIPT = [
    Reply("I look at the invoices.", tool_calls=[ToolCall("mcp__accounts__list_invoices")]),
    Reply("I pay the first one.", tool_calls=[ToolCall("mcp__accounts__pay_invoice", {"number": "A-17", "cents": 12_000})]),
    Reply("I pay the second one.", tool_calls=[ToolCall("mcp__accounts__pay_invoice", {"number": "A-18", "cents": 48_900})]),
    Reply("Both invoices are paid."),
]


def start() -> FakeAnthropic:
    """A server with Anthropic's API on a port of 127.0.0.1."""
    return FakeAnthropic(SCRIPT)
