"""An example agent of the OpenAI Agents SDK: a clerk who reads bills and pays them.

`find_bill` changes nothing. `pay` moves money, under a key that the bank honours: here the bank is the example's ledger,
or a file if the input names none. A payment above 500.00 waits for a person, and meanwhile the run has no pod.

The input: {"bills", "ledger"}. A payment takes PAY_SECONDS. With OPENAI_API_KEY in the environment the model is OpenAI's;
without it, a script plays the model (fake_model.py).
"""

import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

from agents import Agent, function_tool, set_tracing_disabled

import dalsegno.aio
from dalsegno.openai import call_key, guard, run_agent

BILLS = {
    "paper": {"to": "Bird & Sons", "cents": 4200},
    "heating": {"to": "Warm Ltd", "cents": 31900},
    "roof": {"to": "Slate & Co", "cents": 98000},
}
INPUT = {"bills": list(BILLS)}


def make_agent(run, ledger):
    """The clerk. The tools are plain functions of the SDK; only `call_key()` is Dal Segno's."""

    @function_tool
    def find_bill(name: str) -> str:
        """Returns who wants how many cents."""
        return json.dumps(BILLS.get(name, "there is no such bill"))

    async def is_large(_context, arguments, _call_id) -> bool:
        return arguments["cents"] > 50_000

    @function_tool(needs_approval=is_large)
    def pay(bill: str, to: str, cents: int) -> str:
        """Pays a bill."""
        time.sleep(float(os.environ.get("PAY_SECONDS", "0")))
        entry = {"key": call_key(), "run": run.name, "turn": run.next_turn, "attempt": run.attempt}
        bank(ledger, {**entry, "note": f"{bill}: {cents} to {to}"})
        return f"paid {cents} cents to {to}"

    return Agent(name="Clerk", instructions="Pay each bill once. Look it up first.", tools=[find_bill, pay])


def bank(ledger, entry):
    """Books a payment. A key that is known already changes nothing, so a request without an answer is sent again."""
    if ledger:
        body = json.dumps(entry).encode()
        request = urllib.request.Request(f"{ledger}/entries", body, {"Content-Type": "application/json"})
        for pause in (1, 2, 3, 4, 5, None):
            try:
                return urllib.request.urlopen(request, timeout=10).close()
            except urllib.error.HTTPError:
                raise
            except OSError:
                if pause is None:
                    raise
                time.sleep(pause)
    book = Path("payments.jsonl")
    known = [json.loads(line)["key"] for line in book.read_text().splitlines()] if book.exists() else []
    if entry["key"] not in known:
        with book.open("a") as file:
            file.write(json.dumps(entry) + "\n")


async def main():
    async with await dalsegno.aio.attach(state=dict) as run:
        wish = {**INPUT, **(run.input or {})}
        print(f"attempt {run.attempt} continues at turn {run.next_turn}", flush=True)
        clerk = guard(run, make_agent(run, wish.get("ledger")), find_bill="readOnly", pay="retrySameKey")
        result = await run_agent(run, clerk, f"Please settle these bills: {', '.join(wish['bills'])}.")
        print(result.final_output, flush=True)
        await run.finish(output=result.final_output)


if __name__ == "__main__":
    if not os.environ.get("OPENAI_API_KEY"):
        import fake_model

        set_tracing_disabled(True)
        os.environ.update(fake_model.environment())
    asyncio.run(main())
