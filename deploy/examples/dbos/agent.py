"""An agent on DBOS that outlives its pods. It writes a field guide, one page after the other.

DBOS keeps the checkpoints, in PostgreSQL: each step of the workflow runs until its result is stored, and a process that
starts with the same DBOS__VMID goes on at the next step. The manifest makes DBOS__VMID the run's UID, which is the same in
each of the run's pods.

The input: {"pages", "pageSeconds", "ledger"}.
"""

import http.client
import json
import os
import signal
import time
import urllib.request

from dbos import DBOS, SetWorkflowID

BIRDS = ["arctic tern", "barn swallow", "crane", "curlew", "osprey", "redstart", "white stork"]
RUN = os.environ["DBOS__VMID"]


@DBOS.step()
def think(page: int, seconds: float) -> str:
    """A stand-in for a model."""
    time.sleep(seconds)
    return f"{BIRDS[page % len(BIRDS)]}, page {page}"


@DBOS.step()
def write(ledger: str, page: int, text: str) -> None:
    """Writes one page. A pod may die after the page is written and before DBOS has stored that: the step then runs again.
    The ledger honours the key, so that a page that is sent twice is there once."""
    entry = {"key": f"{RUN}/{page}", "run": os.environ["DALSEGNO_RUN"], "turn": page, "note": text}
    entry["attempt"] = int(os.environ["DALSEGNO_ATTEMPT"])
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


@DBOS.workflow()
def field_guide(pages: int, seconds: float, ledger: str) -> int:
    for page in range(1, pages + 1):
        write(ledger, page, think(page, seconds))
        print(f"page {page} of {pages}", flush=True)
    return pages


def main() -> None:
    # An exit with 0 ends the run. So a process that gets SIGTERM exits with another code, and DBOS goes on at the next step.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    with open(os.environ["DALSEGNO_INPUT_FILE"]) as file:
        task = json.load(file)
    DBOS(config={"name": "field-guide", "system_database_url": os.environ["DATABASE_URL"]})
    DBOS.launch()  # also goes on with the workflow of an earlier pod
    # The id makes the start safe to repeat: a workflow that has begun is not begun again.
    with SetWorkflowID(RUN):
        workflow = DBOS.start_workflow(field_guide, task["pages"], task["pageSeconds"], task["ledger"])
    try:
        pages = workflow.get_result()
    except Exception as error:
        # DBOS has stored that the workflow has failed. Another pod would only read that again: a person is needed.
        with open("/dev/termination-log", "w") as log:
            json.dump({"dalsegno": 1, "class": "fatal", "message": str(error)}, log)
        raise
    print(f"{pages} pages are written", flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    main()
