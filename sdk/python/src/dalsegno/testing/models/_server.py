"""What both fake model servers share: the script of replies, HTTP, and server-sent events."""

from __future__ import annotations

import itertools
import json
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model asks for."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    """The vendor's id of the call; by default one is made from the place in the conversation."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says: a text, calls of tools, or both."""

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    tokens_in: int = 10
    tokens_out: int = 5


Script = Sequence[Reply] | Callable[[dict[str, Any]], Reply]
"""The replies in the order of the conversation, or a function from the body of a request to a reply."""

Event = tuple[str, dict[str, Any]]
"""The name and the data of a server-sent event."""


class Failure(Exception):
    """An answer that is no reply: its status, body and headers."""

    def __init__(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers


AnyModel = TypeVar("AnyModel", bound="FakeModel")


class FakeModel:
    """A model server on a port of 127.0.0.1, until `close` or the end of `with`."""

    def __init__(self, script: Script) -> None:
        self.requests: list[dict[str, Any]] = []
        """The bodies of the requests for a reply, in order."""
        self._script = script
        self._failures: list[Failure] = []
        self._lock = threading.Lock()
        self._ids, self._unique = itertools.count(1), secrets.token_hex(4)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    def __enter__(self: AnyModel) -> AnyModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops to serve."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The address of the server, without a path."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def fail_next(self, status: int = 429, *, retry_after: int | None = None, times: int = 1) -> None:
        """Refuses the next requests, such as for a rate limit. `retry_after`: seconds."""
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        body = self._error(status)
        with self._lock:
            self._failures += [Failure(status, body, headers)] * times

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any] | list[Event]:
        """The body of an answer, or the events of a stream. Errors: `Failure`; `KeyError` for an unknown path."""
        raise NotImplementedError

    def _error(self, status: int) -> dict[str, Any]:
        raise NotImplementedError

    def _reply(self, body: dict[str, Any], spoken: int) -> Reply:
        """The reply to a conversation in which the model has spoken so many times."""
        with self._lock:
            self.requests.append(body)
            if self._failures:
                raise self._failures.pop(0)
        if callable(self._script):
            return self._script(body)
        if spoken >= len(self._script):
            raise Failure(400, self._error(400), {})
        return self._script[spoken]

    def _next_id(self, prefix: str) -> str:
        """An id that no other server gives: a vendor's client takes two messages with one id for one."""
        return f"{prefix}_{self._unique}{next(self._ids):06}"


def call_id(call: ToolCall, spoken: int, number: int, prefix: str) -> str:
    """The id of a call: its own, or one that is the same each time that the same question is asked."""
    return call.id or f"{prefix}_{spoken}_{number}"


def _handler(model: FakeModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                answer = model.answer(self.path.partition("?")[0], json.loads(raw or b"{}"))
            except Failure as failure:
                self._send(failure.status, json.dumps(failure.body).encode(), "application/json", failure.headers)
            except KeyError:
                self._send(404, b'{"error": {"message": "there is no such path"}}', "application/json")
            else:
                if isinstance(answer, dict):
                    self._send(200, json.dumps(answer).encode(), "application/json")
                else:
                    self._send(200, _stream(answer), "text/event-stream")

        def do_HEAD(self) -> None:
            self._send(200, b"", "application/json")

        def do_GET(self) -> None:
            self._send(404, b'{"error": {"message": "there is no such path"}}', "application/json")

        def _send(self, status: int, text: bytes, kind: str, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(text)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def _stream(events: Iterable[Event]) -> bytes:
    lines = []
    for name, data in events:
        lines.append(f"event: {name}\n" if name else "")
        lines.append(f"data: {data['raw'] if 'raw' in data else json.dumps(data)}\n\n")
    return "".join(lines).encode()
