"""A scripted agent: its input says how many turns it has, how long one takes, and what goes wrong."""

import os
import shutil
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
import uuid
from pathlib import Path

from dalsegno import Run

subprocess.Popen(["sleep", "300"])  # a helper that holds our output open until it is killed
run = Run.attach()
script = run.input or {}
if "daemon" in script and run.attempt == 1:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    daemon = subprocess.Popen(["sleep", "300"], start_new_session=True, **quiet)
    Path(script["daemon"]).write_text(str(daemon.pid))
if "copy" in script:
    shutil.copy(os.environ["DALSEGNO_INPUT_FILE"], script["copy"])
print(os.environ["DALSEGNO_RUN"], os.environ["DALSEGNO_ATTEMPT"], "attached", flush=True)
for warning in run.warnings:
    print("warning", warning["code"], flush=True)
turns = run.state or []
while run.turn <= script.get("turns", 3):
    run.check()
    if run.turn == script.get("crashAt") and not Path(script["fixed"]).exists():
        sys.exit(7)
    if run.turn == script.get("fatalAt"):
        run.fail("the key is revoked", fatal=True)
    if run.turn == script.get("askAt"):
        run.call("pay", policy="ask", tool=lambda key, arguments: os._exit(9))
    if run.turn == script.get("sleepAt"):
        wanted = datetime.now(timezone.utc) + timedelta(seconds=script["nap"])  # later in the attempt after the park
        elapsed = run.sleep_until("nap", wanted)
        print("woke", elapsed.outcome, "in attempt", run.attempt, flush=True)
    if run.turn == script.get("waitAt"):
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(script["until"]))
        wait = run._transport.send("waits/later", {"kind": "until", "time": at})
        print("wait", wait["state"], flush=True)
        if wait["state"] == "open":
            run._transport.send("park", {"parkId": str(uuid.uuid4()), "on": ["later"]})
            sys.exit(0)
    time.sleep(script.get("seconds", 0))
    turns.append(run.turn)
    run.commit(run.turn, state=turns)
    print("turn", turns[-1], flush=True)
run.finish("succeeded", output=turns, message=script.get("message", "done"))
