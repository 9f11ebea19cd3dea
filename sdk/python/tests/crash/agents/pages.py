"""The agent of the README: it writes pages into a ledger, one a turn. LEDGER and MODEL are files, one line an entry.

The model takes MODEL_SECONDS, and as long as there is a file HOLD.
The ledger honours the key: a request that it knows already returns the same entry.
"""

import json
import os
import time
from pathlib import Path

import dalsegno

LEDGER, MODEL = Path(os.environ["LEDGER"]), Path(os.environ["MODEL"])


@dalsegno.tool(policy="retrySameKey")
def write_page(page: int, text: str, *, key: str = "") -> str:
    entries = [json.loads(line) for line in LEDGER.read_text().splitlines()]
    if key not in [entry["key"] for entry in entries]:
        with LEDGER.open("a") as ledger:
            ledger.write(json.dumps({"key": key, "page": page, "text": text}) + "\n")
    return f"entry-{page}"


def model(state: dict) -> str:  # type: ignore[type-arg]
    with MODEL.open("a") as asked:
        asked.write("asked\n")
    time.sleep(float(os.environ.get("MODEL_SECONDS", "0")))
    while "HOLD" in os.environ and Path(os.environ["HOLD"]).exists():
        time.sleep(0.02)
    return f"text {len(state.get('pages', [])) + 1}"


with dalsegno.attach(state=dict) as run:
    while run.next_turn <= run.input["pages"]:
        with run.turn() as turn:
            text = turn.step("draft", model, run.state)
            entry = write_page(turn.number, text)
            run.state.setdefault("pages", []).append(entry)
    run.finish(output={"pages": len(run.state["pages"])})
