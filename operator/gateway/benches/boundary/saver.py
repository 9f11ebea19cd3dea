"""Saves steps with LangGraph's PostgreSQL saver and measures them.

Each line of standard input is a state as JSON, which is saved as one step; for an empty line the latest checkpoint is
loaded. A step does what a graph's loop does: it stores the writes of its one task under the checkpoint that the step began
with, then the next checkpoint. The answer to each line is the time in nanoseconds.
"""

import json
import sys
import time
import uuid
from datetime import datetime, timezone

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.postgres import PostgresSaver

with PostgresSaver.from_conn_string(sys.argv[1]) as saver:
    saver.setup()
    thread = {"configurable": {"thread_id": str(uuid.uuid4()), "checkpoint_ns": ""}}
    config = saver.put(thread, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {})
    version = None
    for step, line in enumerate(sys.stdin):
        if not line.strip():
            began = time.perf_counter_ns()
            assert saver.get_tuple(thread).checkpoint["channel_values"]
            print(time.perf_counter_ns() - began, flush=True)
            continue
        state = json.loads(line)
        version = saver.get_next_version(version, None)
        checkpoint = {
            "v": 4,
            "id": str(uuid6(clock_seq=step)),
            "ts": datetime.now(timezone.utc).isoformat(),
            "channel_values": {"state": state},
            "channel_versions": {"state": version},
            "versions_seen": {"agent": {"state": version}},
            "updated_channels": ["state"],
        }
        began = time.perf_counter_ns()
        saver.put_writes(config, [("state", state)], str(uuid.uuid4()))
        config = saver.put(config, checkpoint, {"source": "loop", "step": step, "parents": {}}, {"state": version})
        print(time.perf_counter_ns() - began, flush=True)
