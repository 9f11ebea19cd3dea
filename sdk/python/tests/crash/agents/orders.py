"""An agent of every kind of call: it asks a person, pays under the approval, writes records, takes a message, and is
suspended by nobody. LEDGER is a file, one line an entry. The pay tool honours no key, so it has a probe."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import dalsegno
from dalsegno import CallFailed, Operation

LEDGER = Path(os.environ["LEDGER"])


def entries() -> list[dict[str, object]]:
    return [json.loads(line) for line in LEDGER.read_text().splitlines()]


def find(order: str, cents: int, *, key: str) -> str:
    if key not in [entry["key"] for entry in entries()]:
        raise CallFailed
    return f"receipt for {order}"


@dalsegno.tool(policy="probe", probe=find)
def pay(order: str, cents: int, *, key: str = "") -> str:
    with LEDGER.open("a") as ledger:
        ledger.write(json.dumps({"key": key, "order": order, "cents": cents}) + "\n")
    return f"receipt for {order}"


@dataclass
class State:
    receipts: list[str] = field(default_factory=list)
    heard: list[object] = field(default_factory=list)


with dalsegno.attach(state=State) as run:
    run.recover()
    while run.next_turn <= 2:
        with run.turn() as turn:
            order = f"order-{turn.number}"
            run.state.heard += [message.value for message in turn.take_messages()]
            answer = run.approval(order, {"order": order, "cents": 5}, title=f"Pay {order}?")
            assert answer.granted
            run.space("log").append("log", f"asked-{turn.number}", order)
            run.state.receipts.append(pay.approved_by(answer)(order, 5))
            turn.record(Operation.put("log", order, {"paid": True}))
    run.finish(output={"receipts": run.state.receipts})
