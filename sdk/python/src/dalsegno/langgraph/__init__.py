"""LangGraph on Dal Segno: a graph whose run outlives its process.

```python
with dalsegno.attach() as run:
    tools = ToolNode([pay], wrap_tool_call=guard(run, pay="retrySameKey"))
    graph = build(tools).compile(checkpointer=RecordSaver(run))
    result = run_graph(run, graph, {"messages": [("user", run.input["task"])]})
    run.finish(output={"said": result["messages"][-1].content})
```

Each checkpoint of the graph is a turn of the run. Interrupts become approvals, and the run has no pod while it waits for
them. It needs the packages of the extra `langgraph`.
"""

from dalsegno.langgraph._guard import Guard, guard
from dalsegno.langgraph._run import arun_graph, run_graph
from dalsegno.langgraph._running import Key
from dalsegno.langgraph._saver import RecordSaver

__all__ = ["Guard", "Key", "RecordSaver", "arun_graph", "guard", "run_graph"]
