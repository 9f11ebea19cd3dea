"""What both fake model servers share: the script of replies, HTTP, and server-sent events."""

from __future__ import annotations

import itertools
import json
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dalsegno.testing._http import Closing, HttpServer, Request, Response


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model asks for: `ToolCall("pay", {"cents": 500})`."""

    name: str
    """The name under which the framework offers the tool to the model."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Any JSON object."""
    id: str = ""
    """The vendor's id of the call; by default one is made from the place in the conversation."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says: a text, calls of tools, or both: `Reply("I pay.", [ToolCall("pay", {"cents": 500})])`."""

    text: str = ""
    """May be empty."""
    tool_calls: Sequence[ToolCall] = ()
    """More than one are parallel calls of one answer."""
    tokens_in: int = 10
    """The tokens of the request, as the answer reports them."""
    tokens_out: int = 5
    """The tokens of the answer, as it reports them."""


Script = Sequence[Reply] | Callable[[dict[str, Any]], Reply]
"""A list of replies in the order of the conversation, or a function from the body of a request, as parsed JSON, to a
`Reply`. After the last reply of a list, requests are refused with status 400."""

Event = tuple[str, dict[str, Any]]
"""The name and the data of a server-sent event."""


NO_SUCH_PATH = Response(404, b'{"error": {"message": "there is no such path"}}')


class Failure(Exception):
    """An answer that is no reply: its status, body and headers."""

    def __init__(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers


class FakeModel(Closing):
    """A model server, until `close` or the end of `with`. By default it has a free port of 127.0.0.1.

    `GET /requests` returns how many requests for a reply came, as `{"requests": 3}`.
    """

    def __init__(self, script: Script, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """script: see `Script`. host: `0.0.0.0` serves other machines and pods too. port: 0 is a free one."""
        self.requests: list[dict[str, Any]] = []
        """The bodies of the requests for a reply, in order."""
        self._script = script
        self._failures: list[Failure] = []
        self._lock = threading.Lock()
        self._ids, self._unique = itertools.count(1), secrets.token_hex(4)
        self._server = HttpServer(self._respond, host, port)

    def close(self) -> None:
        """Stops to serve."""
        self._server.close()

    @property
    def url(self) -> str:
        """The address of the server for this machine, without a path."""
        return self._server.url

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the vendor's client reads."""
        return self.environment_of(self.url)

    @staticmethod
    def environment_of(url: str) -> dict[str, str]:
        """The variables for a server at this address, such as one in another pod."""
        raise NotImplementedError

    def wait(self) -> None:
        """Serves until SIGTERM or SIGINT, and closes. For a process of its own, in the main thread."""
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        stop.wait()
        self.close()

    def fail_next(self, status: int = 429, *, retry_after: int | None = None, times: int = 1) -> None:
        """Refuses the next requests, such as for a rate limit. `retry_after`: seconds."""
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        body = self._error(status, f"status {status}")
        with self._lock:
            self._failures += [Failure(status, body, headers)] * times

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any] | list[Event] | None:
        """The body of an answer, or the events of a stream; `None` for an unknown path. Errors: `Failure`."""
        raise NotImplementedError

    def _error(self, status: int, message: str) -> dict[str, Any]:
        raise NotImplementedError

    def _respond(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(200, b"")
        if (request.method, request.target) == ("GET", "/requests"):
            return Response(200, json.dumps({"requests": len(self.requests)}).encode())
        if request.method != "POST":
            return NO_SUCH_PATH
        path = request.target.partition("?")[0]
        try:
            answer = self.answer(path, json.loads(request.body or b"{}"))
        except Failure as failure:
            return Response(failure.status, json.dumps(failure.body).encode(), headers=failure.headers)
        if answer is None:
            return NO_SUCH_PATH
        if isinstance(answer, dict):
            return Response(200, json.dumps(answer).encode())
        return Response(200, _stream(answer), "text/event-stream")

    def _reply(self, body: dict[str, Any], spoken: int, refusal: str | None) -> Reply:
        """The reply to a conversation in which the model has spoken so many times. refusal: why the API refuses it."""
        with self._lock:
            self.requests.append(body)
            if self._failures:
                raise self._failures.pop(0)
        if refusal is not None:
            raise Failure(400, self._error(400, refusal), {})
        if callable(self._script):
            return self._script(body)
        if spoken >= len(self._script):
            raise Failure(400, self._error(400, f"the script has no reply after {spoken} replies"), {})
        return self._script[spoken]

    def _next_id(self, prefix: str) -> str:
        """An id that no other server gives: a vendor's client takes two messages with one id for one."""
        return f"{prefix}_{self._unique}{next(self._ids):06}"


def call_id(call: ToolCall, spoken: int, number: int, prefix: str) -> str:
    """The id of a call: its own, or one that is the same each time that the same question is asked."""
    return call.id or f"{prefix}_{spoken}_{number}"


def _stream(events: Iterable[Event]) -> bytes:
    lines = []
    for name, data in events:
        lines.append(f"event: {name}\n" if name else "")
        lines.append(f"data: {data['raw'] if 'raw' in data else json.dumps(data)}\n\n")
    return "".join(lines).encode()
