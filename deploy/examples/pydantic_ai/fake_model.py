"""A stand-in for OpenAI's model: it says the same in each attempt, and costs nothing.

python3 fake_model.py 8091        # a server of its own, which outlives the agent. The agent uses it with FAKE_MODEL=http://…
"""

import os
import re
import sys

from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall


def reply(body):
    """It looks for a supplier, then pays, then answers."""
    messages = body["messages"]
    task = next(message["content"] for message in messages if message["role"] == "user")
    item, cents = re.findall(r"Buy (.+) for (\d+) cents", str(task))[0]
    spoken = sum(message["role"] == "assistant" for message in messages)
    if spoken == 0:
        return Reply("I look for a supplier.", tool_calls=[ToolCall("find_supplier", {"item": item})])
    if spoken == 1:
        return Reply("I pay.", tool_calls=[ToolCall("pay", {"supplier": "Bird & Sons", "cents": int(cents)})])
    return Reply(f"I bought {item}.")


def environment():
    """Variables for OpenAI's client: of the server that FAKE_MODEL names, or of one in this process."""
    url = os.environ.get("FAKE_MODEL")
    return FakeOpenAI.environment_of(url) if url else FakeOpenAI(reply).environment


if __name__ == "__main__":
    FakeOpenAI(reply, host="0.0.0.0", port=int(sys.argv[1])).wait()
