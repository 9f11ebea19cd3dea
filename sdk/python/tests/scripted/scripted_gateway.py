"""A gateway that answers from a script, and agents that run against it."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import textwrap
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[2] / "src"
FLAGS = {"suspend": False, "cancel": False, "leaseSeconds": 15}
HEAD = {"turn": 1, "boundary": "result", "position": 0, "contentHash": "sha256:00"}
# Each agent runs in its own process, because most of what the client promises is how that process ends.
PREAMBLE = """import os, pathlib, sys, threading, time, dalsegno
from dalsegno import *
dalsegno._attempt.HEARTBEAT_TIMEOUT_SECONDS = 30  # a gateway on a busy machine may take longer than 2 s
"""

LONGEST_SECONDS = 60
"""After so long an agent has not ended as it should."""

Agent = subprocess.Popen[str]


@dataclass(frozen=True)
class Answer:
    """An answer; its body is sent as it is if it is bytes, and as JSON otherwise."""

    status: int
    body: Any
    headers: dict[str, str] | None = None
    seconds: float = 0
    """How long the gateway takes for it."""
    until: Callable[[], object] | None = None
    """The gateway answers once this is true."""
    closes: bool = False
    """The gateway closes the connection after the answer, and no header says so."""

    def but(self, **fields: Any) -> Answer:
        """This answer with other fields."""
        return replace(self, **fields)

    def text(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


NO_ANSWER = Answer(0, b"")
"""The connection is closed without an answer."""


def attached(**more: Any) -> Answer:
    fresh = {"run": "demo/first", "attempt": 1, "decision": "fresh", "branch": 0, "waits": [], "contract": 2}
    return Answer(200, {**fresh, "unsettledCalls": [], "completedCalls": [], "warnings": [], "heartbeatSeconds": 60, **FLAGS, **more})


def ok(**more: Any) -> Answer:
    return Answer(200, {**FLAGS, **more})


def committed(turn: int, boundary: str = "result", **more: Any) -> Answer:
    return ok(result="ok", head={**HEAD, "turn": turn, "boundary": boundary}, **more)


def problem(status: int, code: str, **headers: str) -> Answer:
    """A refusal or a failure of the gateway; `Retry_After="1"` is a header."""
    body = {"type": "about:blank", "status": status, "code": code, "detail": "because"}
    return Answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def claimed(verdict: str, state: str = "started", **more: Any) -> Answer:
    call = {"id": "turn-1", "turn": 1, "policy": "retrySameKey", "key": "k1", "state": state, **more}
    return Answer(200, {"verdict": verdict, "call": call})


class ScriptedGateway:
    """Answers from `script`: for each path its answers in order, the last one again and again."""

    def __init__(self, directory: Path) -> None:
        self.script: dict[str, list[Answer]] = {"attach": [attached()], "heartbeat": [ok()]}
        self.seen: list[tuple[str, str, bytes]] = []  # path, bearer and body of each request
        self.ports: defaultdict[str, list[int]] = defaultdict(list)  # the client's, by path: one port is one connection
        self.closed = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()
        (directory / "token").write_text("pod-token\n")
        (directory / "input").write_text('{"goal": "pages"}')
        self.env = {
            **os.environ,
            "PYTHONPATH": str(SOURCES),
            "DALSEGNO_URL": f"http://127.0.0.1:{self.server.server_port}/v1/runs/r1",
            "DALSEGNO_TOKEN_FILE": str(directory / "token"),
            "DALSEGNO_INPUT_FILE": str(directory / "input"),
        }

    def use_tls(self, context: ssl.SSLContext) -> None:
        """New connections use TLS; the handshake is done by the thread of its connection."""
        plain = self.server.socket
        self.server.socket = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        self.env["DALSEGNO_URL"] = self.env["DALSEGNO_URL"].replace("http://", "https://")

    def start(self, code: str) -> Agent:
        """Starts an agent of these lines."""
        command = [sys.executable, "-u", "-c", PREAMBLE + textwrap.dedent(code)]
        return subprocess.Popen(command, env=self.env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, code: str) -> tuple[int, str, str]:
        """The exit code, standard output and standard error of an agent of these lines."""
        agent = self.start(code)
        try:
            out, err = agent.communicate(timeout=LONGEST_SECONDS)
        finally:
            agent.kill()
        return agent.returncode, out, err

    def bodies(self, path: str) -> list[bytes]:
        """The bodies of all requests for this path."""
        return [body for seen, _, body in self.seen if seen == path]

    def beats_since(self, path: str) -> int:
        """How many heartbeats have come since the first request for this path."""
        paths = [seen for seen, _, _ in self.seen]
        return paths[paths.index(path) :].count("heartbeat")

    def close(self) -> None:
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()


def _handler(gateway: ScriptedGateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self.connection.settimeout(60)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.removeprefix("/v1/runs/r1/")
            gateway.seen.append((path, self.headers["Authorization"], body))
            gateway.ports[path].append(self.client_address[1])
            answers = gateway.script[path]
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            gateway.closed.wait(answer.seconds)
            while answer.until is not None and not answer.until() and not gateway.closed.wait(0.01):
                pass
            if answer is not NO_ANSWER:
                self.write(answer)
            if answer is NO_ANSWER or answer.closes:
                self.close_connection = True

        do_GET = do_POST

        def write(self, answer: Answer) -> None:
            text = answer.text()
            self.send_response(answer.status)
            for name, value in (answer.headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
