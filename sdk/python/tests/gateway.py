"""A gateway that answers by a script, and agents that run against it."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SDK = Path(__file__).parents[1] / "src"
FLAGS = {"suspend": False, "cancel": False, "leaseSeconds": 15}
HEAD = {"turn": 1, "boundary": "result", "position": 0, "contentHash": "sha256:00"}


def attach(**more):
    fresh = {"run": "demo/first", "attempt": 1, "decision": "fresh", "unsettledCalls": [], "completedCalls": []}
    return 200, {**fresh, "approval": None, "warnings": [], "heartbeatSeconds": 60, **FLAGS, **more}


def ok(**more):
    return 200, {**FLAGS, **more}


def committed(turn, boundary="result"):
    return ok(result="ok", head={**HEAD, "turn": turn, "boundary": boundary})


def problem(status, code):
    return status, {"type": "about:blank", "status": status, "code": code, "detail": "because"}


def call(verdict, state="started", **more):
    made = {"id": "turn-1", "turn": 1, "policy": "retrySameKey", "key": "k1", "state": state, **more}
    return 200, {"verdict": verdict, "call": made}


class Gateway:
    """Answers by a script: {path: [answers in order, the last one again and again]}; the answer `CUT` is none at all."""

    CUT = object()

    def __init__(self, tmp_path):
        self.script = {"attach": [attach()], "heartbeat": [ok()]}
        self.seen = []  # (path, bearer, body) of every request
        self.ports = defaultdict(list)  # the client's, of the requests of each path: the same one is the same connection
        self.idle_seconds = 60  # after which a connection is closed
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                self.timeout = gateway.idle_seconds
                super().setup()

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.removeprefix("/v1/runs/r1/")
                gateway.seen.append((path, self.headers["Authorization"], body))
                gateway.ports[path].append(self.client_address[1])
                answers = gateway.script[path]
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                if answer is Gateway.CUT:
                    self.close_connection = True
                    return
                status, fields, *headers = answer
                text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()
        (tmp_path / "token").write_text("pod-token\n")
        (tmp_path / "input").write_text('{"goal": "pages"}')
        self.env = {
            **os.environ,
            "PYTHONPATH": str(SDK),
            "DALSEGNO_URL": f"http://127.0.0.1:{self.server.server_port}/v1/runs/r1",
            "DALSEGNO_TOKEN_FILE": str(tmp_path / "token"),
            "DALSEGNO_INPUT_FILE": str(tmp_path / "input"),
        }

    def start(self, code):
        """Starts an agent of these lines, in its own process: most of what is promised is how it ends."""
        preamble = "import os, pathlib, sys, threading, time, dalsegno\nfrom dalsegno import *\n"
        command = [sys.executable, "-u", "-c", preamble + textwrap.dedent(code)]
        return subprocess.Popen(command, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, code):
        agent = self.start(code)
        out, err = agent.communicate(timeout=30)
        return agent.returncode, out, err

    def bodies(self, path):
        return [body for seen, _, body in self.seen if seen == path]
