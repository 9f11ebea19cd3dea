"""Saves one step with LangGraph's PostgreSQL saver for each line of standard input, a state as JSON; an empty line has the
latest checkpoint loaded.

Does what a graph's loop does for a step that ends with a checkpoint: the writes of its one task under the checkpoint
that the step began with, then the next checkpoint. Answers each line with the nanoseconds that took.
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
