"""An example agent on the Claude Agent SDK: it pays the open invoices, and outlives its pods.

Claude lists the invoices and pays each by a tool. The tool writes into the ledger, which stands for the bank, under the
call's key, so an invoice is paid once, however often the process is killed.

The input: {"task", "ledger", "approve", "toolSeconds"}. With "approve" a person decides on each payment.

With ANTHROPIC_API_KEY in the environment the model is Claude; without it, a script plays the model (fake_model.py).
"""

import asyncio
import http.client
import json
import os
import sys
import urllib.request

import dalsegno.aio
from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, TextBlock, tool
from dalsegno.claude import Session, call_key

INVOICES = [{"number": "A-17", "cents": 12_000}, {"number": "A-18", "cents": 48_900}]
PAY = "mcp__accounts__pay_invoice"

run: dalsegno.aio.AsyncRun
job: dict  # the input


def text(value):
    return {"content": [{"type": "text", "text": value}]}


@tool("list_invoices", "Lists the open invoices.", {})
async def list_invoices(args):
    await asyncio.sleep(job.get("toolSeconds", 0))
    return text(json.dumps(INVOICES))


@tool("pay_invoice", "Pays one invoice.", {"number": str, "cents": int})
async def pay_invoice(args):
    await asyncio.sleep(job.get("toolSeconds", 0))
    entry = {"key": call_key(), "run": run.name, "turn": run.next_turn, "attempt": run.attempt, "note": json.dumps(args)}
    await asyncio.to_thread(write, job["ledger"], entry)
    return text(f"paid {args['number']}")


def write(ledger, entry):
    """Writes into the ledger, which honours the key. If it does not answer, the process dies, and the next one asks again."""
    request = urllib.request.Request(f"{ledger}/entries", json.dumps(entry).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10):
        pass


async def main():
    global job, run
    if not os.environ.get("ANTHROPIC_API_KEY"):
        import fake_model

        os.environ.update(fake_model.environment())
    options = ClaudeAgentOptions(
        system_prompt="You are an accountant. Pay each open invoice once, one after the other. Then say that you are done.",
        model=os.environ.get("ANTHROPIC_MODEL", "claude-sonnet-4-5"),
        tools=[],
        setting_sources=[],
        env={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    )
    async with await dalsegno.aio.attach() as run:
        job = run.input
        session = Session(
            run,
            options,
            tools={"accounts": [list_invoices, pay_invoice]},
            policies={"mcp__accounts__list_invoices": "readOnly", PAY: "retrySameKey"},
            approve=[PAY] if job.get("approve") else [],
        )
        print(f"attempt {run.attempt} continues at turn {run.next_turn}", flush=True)
        async for message in session.run(job.get("task", "Pay the open invoices.")):
            if isinstance(message, AssistantMessage):
                print(*(f"claude: {block.text}" for block in message.content if isinstance(block, TextBlock)), flush=True)
        await run.finish(message=session.result[:250])


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
