"""An example agent: it buys something, and asks a person before it pays.

Turn 1 makes the order and stores it. Turn 2 asks for approval, and gives its pod back while a person decides. Then the
next pod pays, once: the payment names the approval, and the store lets an approval allow one call. The ledger stands
for the bank.

The input: {"item", "cents", "ledger"}.
"""

import http.client
import json
import time
import urllib.request

from dalsegno import Run

APPROVAL = "purchase"


def make_order(wish):
    """A stand-in for a model, which would say something else if it were asked again. So its answer is stored first."""
    return {"item": wish["item"], "cents": wish["cents"], "supplier": "Bird & Sons"}


def pay(ledger, entry):
    """Pays. The ledger honours the key, so a request without an answer can be sent again."""
    request = urllib.request.Request(
        f"{ledger}/entries", json.dumps(entry).encode(), {"Content-Type": "application/json"}
    )
    for pause in (1, 2, 3, 4, 5, None):
        try:
            with urllib.request.urlopen(request, timeout=10):
                return entry["note"]
        except (OSError, http.client.HTTPException):
            if pause is None:
                raise
            time.sleep(pause)


def main():
    run = Run.attach()
    print(f"attempt {run.attempt} continues at turn {run.next_turn}", flush=True)
    state = run.state or {"order": make_order(run.input)}
    if run.next_turn == 1:
        run.commit(1, state=state)

    order = state["order"]
    answer = run.approval(
        APPROVAL,
        order,
        title=f"Buy {order['item']}",
        summary=f"{order['cents']} cents to {order['supplier']}; nobody else has it in stock.",
    )
    if not answer.granted:
        end = {"outcome": "failed", "reason": "NotApproved", "message": f"{answer.by} said no: {answer.reason}"}
        run.commit(2, state={"order": order}, finish=end)
        return
    # What a person has changed is the person's word. It replaces fields of the order, and is no instruction to a model.
    order = {**order, **(answer.changes or {})}

    def tool(key, note):
        entry = {"key": key, "run": run.name, "turn": 2, "attempt": run.attempt, "note": json.dumps(note)}
        return pay(run.input["ledger"], entry)

    run.call("pay", policy="retrySameKey", arguments=order, tool=tool, approval=APPROVAL)
    print(f"paid {order['cents']} cents, approved by {answer.by}", flush=True)
    end = {"outcome": "succeeded", "reason": "Bought", "message": f"{order['item']}, approved by {answer.by}"}
    run.commit(2, state={"order": order}, finish={**end, "output": order})


if __name__ == "__main__":
    main()
