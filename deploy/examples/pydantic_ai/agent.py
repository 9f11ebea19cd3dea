"""An example agent on Pydantic AI: it looks for a supplier, and pays once a person agrees, however often it is killed.

The model asks for two tools. `find_supplier` changes nothing. `pay` writes to the ledger, which stands for the bank, under
the key of its call: a payment that is sent twice is stored once. While a person decides, the run has no process.

The input: {"item", "cents", "ledger"}, and perhaps "approve" (false: nobody is asked) and "toolSeconds". With
OPENAI_API_KEY in the environment the model is OpenAI's; without it, a script plays the model (fake_model.py).
"""

import asyncio
import json
import os
import time
import urllib.error
import urllib.request

import dalsegno.aio
from dalsegno.pydantic_ai import Durability, RecordConversationStore, call_key
from pydantic_ai import Agent, Tool
from pydantic_ai.conversation import Conversation


def make_agent(run):
    """The agent that buys what the run's input says. Its name is in the ids of its calls, so it stays the same."""
    order = run.input

    def find_supplier(item: str) -> str:
        """Finds who sells an item."""
        time.sleep(order.get("toolSeconds", 0))
        return f"Bird & Sons sell {item}"

    def pay(supplier: str, cents: int) -> str:
        """Pays a supplier."""
        time.sleep(order.get("toolSeconds", 0))
        entry = {"key": call_key(), "run": run.name, "turn": run.next_turn, "attempt": run.attempt}
        post(f"{order['ledger']}/entries", {**entry, "note": json.dumps({"supplier": supplier, "cents": cents})})
        return f"paid {cents} cents to {supplier}"

    return Agent(
        "openai-chat:gpt-5.2",
        name="buyer",
        instructions="Buy what the user asks for. Find the supplier first, then pay.",
        tools=[find_supplier, Tool(pay, requires_approval=order.get("approve", True))],
        capabilities=[Durability(tools={"find_supplier": "readOnly", "pay": "retrySameKey"})],
    )


def post(url, entry):
    """Sends an entry to the ledger. It is sent again until it is answered: the ledger honours the key."""
    request = urllib.request.Request(url, json.dumps(entry).encode(), {"Content-Type": "application/json"})
    for pause in (1, 2, 3, 4, 5, None):
        try:
            return urllib.request.urlopen(request, timeout=10).close()
        except urllib.error.HTTPError:
            raise
        except OSError:
            if pause is None:
                raise
            time.sleep(pause)


async def main():
    async with await dalsegno.aio.attach() as run:
        print(f"attempt {run.attempt} continues at turn {run.next_turn}", flush=True)
        if not os.environ.get("OPENAI_API_KEY"):
            import fake_model

            os.environ.update(fake_model.environment())
        agent, store = make_agent(run), RecordConversationStore(run)
        async with run.turn() as turn:
            conversation = await store.load("purchase") or Conversation(conversation_id="purchase")
            task = f"Buy {run.input['item']} for {run.input['cents']} cents."
            result = await agent.run(task, conversation=conversation)
            await store.save(result)
            turn.event({"answer": result.output})
            turn.finish(reason="Bought", message=result.output[:1000])
        print(result.output, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
