"""Dal Segno for Pydantic AI: agent runs that outlive their process.

```python
def pay(order: str, cents: int) -> str:
    return bank.pay(order, cents, idempotency_key=call_key())

agent = Agent("openai:gpt-5.2", name="buyer", tools=[pay], capabilities=[Durability(tools={"pay": "retrySameKey"})])

async with await dalsegno.aio.attach() as run:
    async with run.turn() as turn:
        result = await agent.run(run.input["task"])
        turn.finish(output=result.output)
```
"""

from dalsegno.pydantic_ai._conversations import RecordConversationStore
from dalsegno.pydantic_ai._durability import Durability
from dalsegno.pydantic_ai._journal import Journal, Probe, call_key
from dalsegno.pydantic_ai._waits import MessageWaiter

__all__ = ["Durability", "Journal", "MessageWaiter", "Probe", "RecordConversationStore", "call_key"]
