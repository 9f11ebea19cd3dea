"""Fake model servers over HTTP, for tests of agents: the clients of the vendors talk to them unchanged.

```python
with FakeOpenAI([Reply("Hello", tool_calls=[ToolCall("pay", {"cents": 500})]), Reply("Paid.")]) as model:
    gateway.run(["agent.py"], environment=model.environment)
assert len(model.requests) == 2
```

The first reply answers a conversation in which the model has said nothing yet, the second one a conversation in which it
has spoken once, and so on. So a process that is started again after a crash gets the same answer to the same question.
"""

from dalsegno.testing.models._anthropic import FakeAnthropic
from dalsegno.testing.models._openai import FakeOpenAI
from dalsegno.testing.models._server import Reply, Script, ToolCall

__all__ = ["FakeAnthropic", "FakeOpenAI", "Reply", "Script", "ToolCall"]
