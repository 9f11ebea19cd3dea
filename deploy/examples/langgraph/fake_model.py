"""A stand-in for OpenAI's model: it says the same in each attempt, and costs nothing.

python3 fake_model.py 8091        # a server of its own, which outlives the agent. The agent uses it with FAKE_MODEL=http://…
"""

import json
import os
import re
import sys

from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall


def reply(body):
    """It looks the order of the last letter up, then pays the refund, then answers."""
    letter = max(at for at, message in enumerate(body["messages"]) if message["role"] == "user")
    order = re.findall(r"A-\d+", body["messages"][letter]["content"])[0]
    said = body["messages"][letter + 1 :]
    if not said:
        return Reply(tool_calls=[ToolCall("find_order", {"order": order})])
    if len(said) == 2:
        paid = json.loads(said[-1]["content"])["paidCents"]
        return Reply(tool_calls=[ToolCall("refund", {"order": order, "cents": paid})])
    return Reply(f"About {order}: {said[-1]['content']}")


def environment():
    """Variables for OpenAI's client: of the server that FAKE_MODEL names, or of one in this process."""
    url = os.environ.get("FAKE_MODEL")
    return FakeOpenAI.environment_of(url) if url else FakeOpenAI(reply).environment


if __name__ == "__main__":
    FakeOpenAI(reply, host="0.0.0.0", port=int(sys.argv[1])).wait()
