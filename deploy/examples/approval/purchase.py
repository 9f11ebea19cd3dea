"""An example agent that asks a person before it pays, and has no pod while it waits for the answer.

A turn is plan → approval → payment → result. The plan is committed before anybody is asked about it, so that the next
pod asks for the same. The payment names the approval: the store refuses it unless a person has approved, and lets one
approval allow one payment. The ledger honours the key of the payment: one that is sent twice is stored once.

The input: {"wishes": [{"item", "cents"}], "deadlineSeconds", "ledger"}.
"""

import http.client
import json
import time
import urllib.request

from dalsegno import Run, as_user_turn

MOST_CENTS = 10_000


def think(wish):
    """A stand-in for a model: what to buy, and why."""
    return {**wish, "why": f"{wish['item']} is on the list, and {wish['cents'] / 100:.2f} is what it costs."}


def pay(ledger, entry):
    """Writes one payment into the ledger, which honours the key: a request without an answer can be sent again."""
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


def judge(run, answers):
    """Judges by the agent's policy again before it goes on: what a person has changed must be within it too."""
    for answer in answers.values():
        if answer.outcome == "changed" and not is_allowed(answer.changes):
            run.fail(f"the changes are not within this agent's policy: at most {MOST_CENTS} cents", fatal=True)


def is_allowed(changes):
    """Whether a person's changes are an object that this agent may act on."""
    return isinstance(changes, dict) and changes.get("cents", 1) in range(1, MOST_CENTS + 1)


def main():
    run = Run.attach(on_resume=judge)
    wishes = run.input["wishes"]
    state = run.state or {"messages": [], "bought": []}
    print(f"attempt {run.attempt} continues at turn {run.turn} of {len(wishes)}", flush=True)

    while run.turn <= len(wishes):
        run.check()
        turn = run.turn
        if not run.planned:
            state["plan"] = think(wishes[turn - 1])
            run.commit(turn, plan=True, state=state, events=[{"plan": state["plan"]["item"]}])

        plan, wait = state["plan"], f"buy-{turn}"
        title = f"Buy {plan['item']} for {plan['cents'] / 100:.2f}"
        print(f"turn {turn} asks: {title}", flush=True)
        # Without an answer the process ends in this line, and the next one goes on from it.
        answer = run.ask_approval(
            wait, title=title, summary=plan["why"], proposal=plan, deadline=run.input.get("deadlineSeconds", 86_400)
        )
        state["messages"].append(as_user_turn(answer))

        if answer.approved:
            bought = {**plan, **(answer.changes or {})}

            def tool(key, purchase, turn=turn):
                note = f"{purchase['item']} for {purchase['cents']} cents"
                entry = {"key": key, "run": run.name, "turn": turn, "attempt": run.attempt, "note": note}
                return pay(run.input["ledger"], entry)

            run.call(f"pay-{turn}", policy="retrySameKey", arguments=bought, tool=tool, approval=wait)
            state["bought"].append(bought["item"])
        run.commit(turn, state=state, usage={"toolCalls": int(answer.approved)})
        print(f"turn {turn}: {answer.outcome} by {answer.by}", flush=True)

    run.finish("succeeded", reason="GoalReached", output={"bought": state["bought"]})


if __name__ == "__main__":
    main()
