"""Dal Segno for the Claude Agent SDK: a conversation that outlives its pods.

```python
@tool("pay", "Pays an order", {"order": str, "cents": int})                  # claude_agent_sdk.tool
async def pay(args):
    receipt = await bank.pay(args["order"], args["cents"], idempotency_key=call_key())
    return {"content": [{"type": "text", "text": receipt}]}

async with await dalsegno.aio.attach() as run:
    session = Session(run, options, tools={"bank": [pay]}, policies={"mcp__bank__pay": "retrySameKey"})
    async for message in session.run(run.input["task"]):
        print(message)
    await run.finish(message=session.result[:250])
```

`Session` has the guarantees. `RecordSessionStore` alone stores transcripts, for agents that use the SDK without it. It
needs `pip install "dalsegno[claude]"`.
"""

from __future__ import annotations

from dalsegno.claude._session import Session, SessionFailed
from dalsegno.claude._store import RecordSessionStore
from dalsegno.claude._tools import call_key

RecordSessionStore.__module__ = Session.__module__ = call_key.__module__ = "dalsegno.claude"

__all__ = ["RecordSessionStore", "Session", "SessionFailed", "call_key"]
