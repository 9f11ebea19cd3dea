"""A scripted agent: its input says how many turns it has, how long one takes, and what goes wrong."""

import os
import shutil
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
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
while run.next_turn <= script.get("turns", 3):
    run.check()
    while run.next_turn == script.get("pauseAt") and not Path("go").exists():
        time.sleep(0.05)  # until the test has written the file
    if run.next_turn == script.get("crashAt") and not Path(script["fixed"]).exists():
        sys.exit(7)
    if run.next_turn == script.get("fatalAt"):
        run.fail("the key is revoked", fatal=True)
    if run.next_turn == script.get("askAt"):
        run.call("pay", policy="ask", tool=lambda key, arguments: os._exit(9))
    if run.next_turn == script.get("approveAt"):
        answer = run.approval("pay", {"cents": 500}, title="Pay", summary="it is due", expires=script.get("deadline"))
        print("answer", answer.outcome, answer.by, answer.reason, answer.changes, flush=True)
    if run.next_turn == script.get("sleepAt"):
        wanted = datetime.now(timezone.utc) + timedelta(seconds=script["nap"])  # later in the attempt after the park
        elapsed = run.sleep("nap", wanted)
        print("woke", elapsed.outcome, "in attempt", run.attempt, flush=True)
    if run.next_turn == script.get("waitAt"):
        until = Path("until")  # every attempt asks for the same time
        if not until.exists():
            until.write_text(str(int(time.time()) + script["wait"]))
        wait = run.wait("later", "until", time=datetime.fromtimestamp(int(until.read_text()), timezone.utc))
        print("wait", "answered" if wait.answer else "open", flush=True)
        if not wait.answer and run.park(["later"]):
            sys.exit(0)
    heard = []
    if run.next_turn == script.get("hearAt"):
        message = run.message("greeting", id="word")
        print("heard", message.value, "in attempt", run.attempt, flush=True)
        heard = [message]
    time.sleep(script.get("seconds", 0))
    turns.append(run.next_turn)
    run.commit(run.next_turn, state=turns, inbox=heard)
    if heard:
        print("unread", *[message.value for message in run.read_inbox()], flush=True)
    print("turn", turns[-1], flush=True)
run.finish("succeeded", output=turns, message=script.get("message", "done"))
