"""An example agent in LangGraph: a refund desk. It reads letters, looks orders up, and pays refunds.

A refund above the limit needs a person's approval; the run has no pod while it waits for it. The ledger stands for the
bank. It honours the key of a call: a refund that is sent twice is paid once.

The input: {"letters", "limitCents", "ledger"}, and "pauseSeconds" to see more of it. With OPENAI_API_KEY it asks a model
of OpenAI (OPENAI_MODEL names it); without, a script plays the model (fake_model.py).
"""

import http.client
import json
import os
import time
import urllib.request

import dalsegno
from dalsegno.langgraph import Key, RecordSaver, guard, run_graph
from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

RULES = "You are the refund desk of a shop. Look the order up, refund what was paid for it, and answer the customer."
ORDERS = {"A-1": 1900, "A-2": 48900, "A-3": 750}


def build(run, saver):
    """The graph: the model asks for tools, a person reviews large refunds, the tools run, and the model goes on."""

    @tool
    def find_order(order: str) -> str:
        """Finds an order by its number, such as A-1, and says how many cents were paid for it."""
        return json.dumps({"order": order, "paidCents": ORDERS.get(order, 0)})

    @tool
    def refund(order: str, cents: int, key: Key = "") -> str:
        """Refunds so many cents of an order."""
        if not 0 < cents <= ORDERS.get(order, 0):
            raise dalsegno.CallFailed(f"{cents} cents were never paid for {order}")
        note = json.dumps({"order": order, "cents": cents})
        entry = {"key": key, "run": run.name, "turn": run.next_turn, "attempt": run.attempt, "note": note}
        pay(run.input["ledger"], entry)
        return f"refunded {cents} cents of {order}"

    model = ChatOpenAI(model=os.environ.get("OPENAI_MODEL", "gpt-5-mini")).bind_tools([find_order, refund])

    def think(state: MessagesState):
        time.sleep(run.input.get("pauseSeconds", 0))
        return {"messages": [model.invoke([SystemMessage(RULES), *state["messages"]])]}

    def review(state: MessagesState):
        calls = calls_of(state)
        large = [call for call in calls if needs_approval(call)]
        if not large:
            return {}
        orders = ", ".join(str(call["args"]["order"]) for call in large)
        cents = sum(call["args"]["cents"] for call in large)
        answer = interrupt({"title": f"Refund {cents} cents of {orders}", "calls": [call["args"] for call in large]})
        if answer["granted"]:
            return {}
        no = f"Error: {answer['by']} did not approve: {answer['reason']}"
        return {"messages": [ToolMessage(no, tool_call_id=call["id"], status="error") for call in calls]}

    def calls_of(state: MessagesState):
        message = state["messages"][-1]
        return message.tool_calls if isinstance(message, AIMessage) else []

    def needs_approval(call):
        return call["name"] == "refund" and call["args"].get("cents", 0) > run.input["limitCents"]

    def after_model(state: MessagesState):
        return "review" if calls_of(state) else END

    def after_review(state: MessagesState):
        return "think" if isinstance(state["messages"][-1], ToolMessage) else "tools"

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("review", review)
    graph.add_node("tools", ToolNode([find_order, refund], wrap_tool_call=guard(run, find_order="readOnly", refund="retrySameKey")))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", after_model)
    graph.add_conditional_edges("review", after_review)
    graph.add_edge("tools", "think")
    return graph.compile(checkpointer=saver)


def pay(ledger, entry):
    """Writes into the ledger. The ledger honours the key, so a request without an answer can be sent again."""
    request = urllib.request.Request(
        f"{ledger}/entries", json.dumps(entry).encode(), {"Content-Type": "application/json"}
    )
    for pause in (1, 2, 3, 4, 5, None):
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except (OSError, http.client.HTTPException):
            if pause is None:
                raise
            time.sleep(pause)


def main():
    if not os.environ.get("OPENAI_API_KEY"):
        import fake_model

        os.environ.update(fake_model.environment())
    with dalsegno.attach() as run:
        print(f"attempt {run.attempt} continues at turn {run.next_turn}", flush=True)
        graph = build(run, RecordSaver(run))
        answers = []
        for letter in run.input["letters"]:
            result = run_graph(run, graph, {"messages": [("user", letter)]})
            answers.append(result["messages"][-1].content)
            print(answers[-1], flush=True)
        run.finish(reason="Answered", message=f"{len(answers)} letters are answered", output={"answers": answers})


if __name__ == "__main__":
    main()
