"""Dal Segno for the OpenAI Agents SDK: each turn of an agent is a turn of the run, and a crash repeats none of them.

```python
async with await dalsegno.aio.attach() as run:
    agent = guard(run, Agent(name="Clerk", tools=[find_bill, pay]), find_bill="readOnly", pay="retrySameKey")
    result = await run_agent(run, agent, run.input)
    await run.finish(output=result.final_output)
```

`guard` stores the calls of the agent's tools, and its model's answers. `run_agent` commits the agent's state after
each turn, asks people about tools that need an approval, and takes messages of the inbox. `RecordSession` keeps a
conversation in the records of the run. It needs the package `openai-agents`. docs/guides/openai.md says what it
promises.
"""

from __future__ import annotations

from dalsegno.openai._guard import Policy, Probe, call_key, guard
from dalsegno.openai._model import DurableModel
from dalsegno.openai._run import AgentResult, run_agent
from dalsegno.openai._session import RecordSession

__all__ = ["AgentResult", "DurableModel", "Policy", "Probe", "RecordSession", "call_key", "guard", "run_agent"]
