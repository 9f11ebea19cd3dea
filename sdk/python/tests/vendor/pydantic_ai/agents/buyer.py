"""An agent that looks for a thing and pays for it. LEDGER is a file, one line a payment, and honours the key."""

import asyncio
import json
import os
import signal
from pathlib import Path

from pydantic_ai import Agent

import dalsegno.aio
from dalsegno.pydantic_ai import Durability, call_key

LEDGER, LOG = Path(os.environ["LEDGER"]), Path(os.environ["LOG"])


def note(line: str) -> None:
    with LOG.open("a") as log:
        log.write(line + "\n")


def search(item: str) -> str:
    note(f"search {item}")
    return f"{item} costs 500 cents at Bird & Sons"


async def pay(order: str, cents: int) -> str:
    note(f"pay {order}")
    entries = [json.loads(line) for line in LEDGER.read_text().splitlines()]
    if call_key() not in [entry["key"] for entry in entries]:
        with LEDGER.open("a") as ledger:
            ledger.write(json.dumps({"key": call_key(), "order": order, "cents": cents}) + "\n")
    while os.environ["DALSEGNO_ATTEMPT"] == "1" and "HOLD" in os.environ and not Path(os.environ["HOLD"]).exists():
        await asyncio.sleep(0.02)
    if os.environ.get("DIE_IN_PAY") and os.environ["DALSEGNO_ATTEMPT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"paid {cents} cents"


agent = Agent(
    "openai:gpt-5.2",
    name="buyer",
    tools=[search, pay],
    capabilities=[Durability(tools={"search": "readOnly", "pay": "retrySameKey"})],
)


async def main() -> None:
    async with await dalsegno.aio.attach(heartbeat="HOLD" not in os.environ) as run:
        async with run.turn() as turn:
            result = await agent.run("Buy nails.")
            turn.finish(output={"answer": result.output})


asyncio.run(main())
