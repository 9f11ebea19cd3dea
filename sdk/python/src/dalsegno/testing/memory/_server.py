"""The HTTP side of the gateway in memory: paths, bodies, and answers."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote

from dalsegno.testing.memory import _boundaries, _calls, _records, _waits
from dalsegno.testing.memory._rows import Problem, Rows, invalid

MAX_BODY_BYTES = 16 << 20
MAX_WAIT_SECONDS = 20

Hook = Callable[[str, str], None]
"""Called with the name of a request, and `before` it is carried out or `after` it was and before it is answered."""


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A process that was killed leaves a broken connection, which is no error of the gateway."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Server:
    """Serves one run. `changed` is notified after each request, and by what people do."""

    def __init__(self, rows: Rows, hook: Hook) -> None:
        self.rows = rows
        self.changed = threading.Condition()
        self.requests: list[str] = []
        """The names of the requests that came, in order, without heartbeats."""
        self._hook = hook
        self._server = _HttpServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    @property
    def port(self) -> int:
        """The port of 127.0.0.1."""
        return self._server.server_port

    def close(self) -> None:
        """Stops to serve."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, target: str, bearer: str, raw: bytes) -> dict[str, Any]:
        """Carries out a request. Errors: `Problem`."""
        path, _, query = target.partition("?")
        name = re.sub("(?<=^(?:calls|waits)/)[^/]+", "*", path)
        counted = name != "heartbeat"
        if counted:
            self.requests.append(name)
            self._hook(name, "before")
        if len(raw) > MAX_BODY_BYTES:
            raise Problem(413, "TOO_LARGE", f"a body of {len(raw)} bytes")
        try:
            body = json.loads(raw or b"{}")
        except ValueError as error:
            raise invalid(f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise invalid("the body is not an object")
        parameters = dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))
        with self.changed:
            _waits.tick(self.rows)
            answer = self._route(method, path.split("/"), parameters, body, raw, bearer)
            self.changed.notify_all()
        if counted:
            self._hook(name, "after")
        return answer

    def _route(
        self, method: str, path: list[str], query: Mapping[str, str], body: dict[str, Any], raw: bytes, bearer: str
    ) -> dict[str, Any]:
        rows = self.rows
        match (method, *path):
            case ("POST", "attach"):
                return _boundaries.attach(rows, body, bearer)
            case ("POST", "turns", number, *kind) if number.isdecimal() and kind in ([], ["plan"]):
                boundary = "plan" if kind else "result"
                return _boundaries.commit(rows, int(number), boundary, body, raw, bearer)
            case ("POST", "finish"):
                return _boundaries.finish(rows, body, raw, bearer)
            case ("POST", "cancelled"):
                return _boundaries.acknowledge_cancel(rows, bearer)
            case ("POST", "park"):
                return _boundaries.park(rows, body, bearer)
        _boundaries.check_worker(rows, bearer, reads=method == "GET")
        match (method, *path):
            case ("POST", "heartbeat"):
                return rows.flags()
            case ("POST", "calls", id, "claim"):
                return _calls.claim(rows, unquote(id), body)
            case ("POST", "calls", id, "complete"):
                return _calls.complete(rows, unquote(id), body)
            case ("POST", "calls", id, "settle"):
                return _calls.settle(rows, unquote(id), body)
            case ("POST", "records"):
                return _records.write(rows, body, raw)
            case ("GET", "records"):
                limit = _number(query, "limit", _records.PAGE)
                return _records.read(
                    rows, query.get("space", ""), query.get("prefix", ""), query.get("after", ""), limit
                )
            case ("POST", "waits", id):
                return _waits.open_wait(rows, unquote(id), body)
            case ("GET", "waits", id):
                return self._poll(unquote(id), _number(query, "seconds", MAX_WAIT_SECONDS))
            case ("GET", "inbox"):
                return _waits.read_inbox(rows, _number(query, "after", 0), _number(query, "limit", _records.PAGE))
            case ("GET", "state"):
                return self._state(query)
            case ("GET", "events"):
                return self._events(query)
        raise Problem(404, "NOT_FOUND", "there is no such path")

    def _poll(self, id: str, seconds: int) -> dict[str, Any]:
        """The wait, once it is answered or after so many seconds."""
        end = time.monotonic() + min(seconds, MAX_WAIT_SECONDS)
        while True:
            _waits.tick(self.rows)
            wait = _waits.known_wait(self.rows, id)
            left = end - time.monotonic()
            if wait.answer is not None or left <= 0:
                return wait.public()
            self.changed.wait(min(left, 0.1))

    def _state(self, query: Mapping[str, str]) -> dict[str, Any]:
        rows = self.rows
        turn = _number(query, "turn", 0)
        if turn and turn not in rows.states:
            raise Problem(404, "NOT_FOUND", f"turn {turn} is not committed")
        return {"state": _boundaries.state_out(rows.states[turn] if turn else rows.channels)}

    def _events(self, query: Mapping[str, str]) -> dict[str, Any]:
        turn = _number(query, "turn", 0)
        events = [event for event in self.rows.events if event["turn"] >= turn]
        return {"events": events, "next": len(self.rows.events) + 1}


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not text.isdecimal():
        raise invalid(f"{name} is not a number")
    return int(text)


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            target = self.path.removeprefix("/v1/runs/").partition("/")[2]
            bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
            try:
                self._send(200, server.answer(self.command, target, bearer, raw))
            except ConnectionAbortedError:
                self.close_connection = True
            except Problem as problem:
                fields: dict[str, Any] = {"type": "about:blank", "status": problem.status, "code": problem.code}
                fields["detail"] = problem.detail
                if problem.committed is not None:
                    fields["committed"] = problem.committed
                self._send(problem.status, fields)

        do_GET = do_POST

        def _send(self, status: int, fields: Mapping[str, Any]) -> None:
            text = json.dumps(fields).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if status == 200 else "application/problem+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            try:
                self.wfile.write(text)
            except OSError:
                self.close_connection = True  # the process was killed while it waited for the answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
