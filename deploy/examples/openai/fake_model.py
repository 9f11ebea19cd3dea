"""A stand-in for OpenAI's model: it says the same in each attempt, and costs nothing.

python3 fake_model.py 8091        # a server of its own, which outlives the agent. The agent uses it with FAKE_MODEL=http://…
"""

import os
import sys

from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall


BILLS = {
    "paper": {"to": "Bird & Sons", "cents": 4200},
    "heating": {"to": "Warm Ltd", "cents": 31900},
    "roof": {"to": "Slate & Co", "cents": 98000},
}
SCRIPT = [
    Reply("", [ToolCall("find_bill", {"name": name}) for name in BILLS]),
    *[Reply("", [ToolCall("pay", {"bill": name, **bill})]) for name, bill in BILLS.items()],
    Reply("All bills are settled."),
]


def environment():
    """Variables for OpenAI's client: of the server that FAKE_MODEL names, or of one in this process."""
    url = os.environ.get("FAKE_MODEL")
    return FakeOpenAI.environment_of(url) if url else FakeOpenAI(SCRIPT).environment


if __name__ == "__main__":
    FakeOpenAI(SCRIPT, host="0.0.0.0", port=int(sys.argv[1])).wait()
