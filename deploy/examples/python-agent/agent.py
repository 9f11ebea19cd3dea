"""An example agent: it writes a field guide, one entry a turn, and outlives its pods.

A turn is plan → tool call → result. The plan is committed before the tool runs: if the pod dies in between, the model is
not asked again. The tool writes to the ledger under the call's key: a note that is sent twice is stored once.

The input: {"goal", "turns", "turnSeconds", "ledger"}.
"""

import http.client
import json
import time
import urllib.request

from dalsegno import Run

BIRDS = ["arctic tern", "barn swallow", "crane", "curlew", "osprey", "redstart", "white stork"]
FACTS = ["how it finds its way", "where it winters", "what it eats on the way"]


def think(state, seconds):
    """A stand-in for a model: after some seconds it returns the plan, and the same plan for the same state."""
    time.sleep(seconds)
    done, read = len(state["notes"]), sum(len(message["content"]) for message in state["messages"])
    plan = f"{BIRDS[done % len(BIRDS)]}: {FACTS[done // len(BIRDS) % len(FACTS)]}"
    return plan, {"tokensIn": read // 4, "tokensOut": len(plan) // 4}


def write(ledger, entry):
    """Writes one note into the ledger. The ledger honours the key, so a request without an answer can be sent again."""
    request = urllib.request.Request(
        f"{ledger}/entries", json.dumps(entry).encode(), {"Content-Type": "application/json"}
    )
    for pause in (1, 2, 3, 4, 5, None):
        try:
            with urllib.request.urlopen(request, timeout=10):
                return entry["turn"]
        except (OSError, http.client.HTTPException):
            if pause is None:
                raise
            time.sleep(pause)


def main():
    run = Run.attach()
    for warning in run.warnings:
        print(f"warning {warning['code']}: {warning['message']}", flush=True)
    turns, pause = run.input.get("turns", 20), run.input.get("turnSeconds", 1)
    # Everything that the next attempt needs. Anything else is lost with the pod.
    state = run.state or {"messages": [{"role": "user", "content": run.input["goal"]}], "notes": []}
    print(f"attempt {run.attempt} continues at turn {run.next_turn} of {turns}", flush=True)

    while run.next_turn <= turns:
        run.check()
        turn, call = run.next_turn, f"note-{run.next_turn}"
        if not run.planned:
            plan, spent = think(state, pause)
            state["messages"].append({"role": "assistant", "content": plan})
            calls = [{"id": call, "policy": "retrySameKey", "arguments": plan}]
            run.commit(turn, plan=True, state=state, calls=calls, usage=spent, events=[{"plan": plan}])

        def tool(key, note):
            entry = {"key": key, "run": run.name, "turn": turn, "attempt": run.attempt, "note": note}
            return write(run.input["ledger"], entry)

        plan = state["messages"][-1]["content"]
        entry = run.call(call, policy="retrySameKey", arguments=plan, tool=tool)
        state["messages"].append({"role": "tool", "content": f"written as note {entry}"})
        state["notes"].append(plan)

        end = {"outcome": "succeeded", "reason": "GoalReached", "message": f"{turn} notes are written"}
        end["output"] = {"notes": turn}
        run.commit(turn, state=state, usage={"toolCalls": 1}, finish=end if turn == turns else None)
        print(f"turn {turn} of {turns}: {plan}", flush=True)


if __name__ == "__main__":
    main()
