"""A server, by default on a port of 127.0.0.1, for what plays the gateway and for what plays a model."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `target` is the path and the query."""

    method: str
    target: str
    headers: Message
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: int
    body: bytes
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Self = TypeVar("Self", bound="Closing")


class Closing:
    """Something that is closed at the end of `with`."""

    def close(self) -> None:
        """Stops to serve."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HttpServer:
    """Serves until `close`, each connection in a thread of its own.

    respond: makes the answer to a request. A `ConnectionError` of it breaks the connection. Any other error does so
    too, and its traceback is written to stderr.
    """

    def __init__(self, respond: Callable[[Request], Response], host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = _Server((host, port), _handler(respond))
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    @property
    def url(self) -> str:
        """The address of the server for this machine, without a path."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stops to serve."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed leaves a broken connection, which is no error of the server."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _handler(respond: Callable[[Request], Response]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = respond(Request(self.command, self.path, self.headers, body))
            self.send_response(answer.status)
            headers = {"Content-Type": answer.kind, "Content-Length": str(len(answer.body)), **answer.headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_HEAD = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
