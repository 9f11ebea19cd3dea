"""The HTTP side of the gateway in memory: paths, bodies, and answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from dalsegno._wire import MAX_BODY_BYTES, log_name
from dalsegno.testing._http import HttpServer, Request, Response
from dalsegno.testing.memory import _boundaries, _calls, _records, _waits
from dalsegno.testing.memory._checks import PAGE, Problem, check_fields, check_name, invalid
from dalsegno.testing.memory._rows import Rows

MAX_WAIT_SECONDS = 20
RUNS = "/v1/runs/"

Hook = Callable[[str, str], None]
"""Called with the name of a request, and `before` it is carried out or `after` it was and before it is answered."""


class Server:
    """Serves one run. `changed` is notified after each request, and by what people do."""

    def __init__(self, rows: Rows, hook: Hook) -> None:
        self.rows = rows
        self.changed = threading.Condition()
        self.requests: list[str] = []
        """The names of the requests that came, in order, without heartbeats."""
        self._hook = hook
        self._server = HttpServer(self._respond)

    def url(self, run: str) -> str:
        """The address of the run with this id."""
        return f"{self._server.url}{RUNS}{run}"

    def close(self) -> None:
        """Stops to serve."""
        self._server.close()

    def _respond(self, request: Request) -> Response:
        target = request.target.removeprefix(RUNS).partition("/")[2]
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            return Response(200, json.dumps(self._answer(request.method, target, bearer, request.body)).encode())
        except Problem as problem:
            fields: dict[str, Any] = {"type": "about:blank", "status": problem.status, "code": problem.code}
            fields["detail"] = problem.detail
            if problem.committed is not None:
                fields["committed"] = problem.committed
            return Response(problem.status, json.dumps(fields).encode(), "application/problem+json")

    def _answer(self, method: str, target: str, bearer: str, raw: bytes) -> dict[str, Any]:
        path, _, query = target.partition("?")
        name = log_name(target)
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
            if method == "GET":
                answer = self._read(path.split("/"), parameters, bearer)
            else:
                answer = self._write(path.split("/"), body, raw, bearer)
            self.changed.notify_all()
        if counted:
            self._hook(name, "after")
        return answer

    def _write(self, path: list[str], body: dict[str, Any], raw: bytes, bearer: str) -> dict[str, Any]:
        rows = self.rows
        match path:
            case ["attach"]:
                return _boundaries.attach(rows, body, bearer)
            case ["turns", number, *kind] if number.isdecimal() and kind in ([], ["plan"]):
                return _boundaries.commit(rows, int(number), "plan" if kind else "result", body, raw, bearer)
            case ["finish"]:
                return _boundaries.finish(rows, body, raw, bearer)
            case ["cancelled"]:
                return _boundaries.acknowledge_cancel(rows, bearer)
            case ["park"]:
                return _boundaries.park(rows, body, bearer)
            case ["heartbeat"]:
                rows.check_bearer(bearer)
                rows.refuse_over()
                return rows.flags()
            case ["calls", id, "claim"]:
                return _calls.claim(rows, _id(id), body, bearer)
            case ["calls", id, "complete"]:
                return _calls.complete(rows, _id(id), body, bearer)
            case ["calls", id, "settle"]:
                return _calls.settle(rows, _id(id), body, bearer)
            case ["records"]:
                return _records.write(rows, body, raw, bearer)
            case ["records", "read"]:
                return _records.read_keys(rows, body, bearer)
            case ["waits", id]:
                return _waits.open_wait(rows, _id(id), body, raw, bearer)
        raise _no_such_path()

    def _read(self, path: list[str], query: Mapping[str, str], bearer: str) -> dict[str, Any]:
        rows = self.rows
        match path:
            case ["records"]:
                check_fields(query, ["space", "prefix", "after", "limit", "order", "keysOnly"])
                limit = _limit(query)
                rows.check_bearer(bearer)
                return _records.read(rows, query, limit)
            case ["waits", id]:
                check_fields(query, ["seconds"])
                return self._poll(_id(id), _number(query, "seconds", 0, MAX_WAIT_SECONDS), bearer)
            case ["inbox"]:
                check_fields(query, ["after", "limit"])
                after, limit = _number(query, "after", 0, 0), _limit(query)
                rows.check_bearer(bearer)
                return _waits.read_inbox(rows, after, limit)
            case ["state"]:
                check_fields(query, ["turn"])
                turn = _number(query, "turn", 1, 0)
                rows.check_bearer(bearer)
                return self._state(turn)
            case ["events"]:
                check_fields(query, ["from", "turn", "limit"])
                first, turn, limit = _number(query, "from", 1, 1), _number(query, "turn", 1, 1), _limit(query)
                rows.check_bearer(bearer)
                return self._events(first, turn, limit)
        raise _no_such_path()

    def _poll(self, id: str, seconds: int, bearer: str) -> dict[str, Any]:
        """The wait, once it is answered or after so many seconds."""
        end = time.monotonic() + min(seconds, MAX_WAIT_SECONDS)
        while True:
            self.rows.check_bearer(bearer)
            _waits.tick(self.rows)
            wait = _waits.known_wait(self.rows, id)
            left = end - time.monotonic()
            if wait.answer is not None or self.rows.over or left <= 0:
                return wait.public(withdrawn=self.rows.over)
            self.changed.wait(min(left, 0.1))

    def _state(self, turn: int) -> dict[str, Any]:
        if turn and turn not in self.rows.saved:
            raise Problem(404, "NOT_FOUND", f"turn {turn} is not committed")
        return {"state": _boundaries.state_out(self.rows.saved[turn].channels if turn else self.rows.channels)}

    def _events(self, first: int, turn: int, limit: int) -> dict[str, Any]:
        left = [event for event in self.rows.events if event["position"] >= first and event["turn"] >= turn]
        page = left[:limit]
        end = page[-1]["position"] if len(page) < len(left) else self.rows.position
        return {"events": page, "next": end + 1}


def _no_such_path() -> Problem:
    return Problem(404, "NOT_FOUND", "there is no such path")


def _id(text: str) -> str:
    return check_name(unquote(text), "the id in the path")


def _limit(query: Mapping[str, str]) -> int:
    return min(_number(query, "limit", 1, PAGE), PAGE)


def _number(query: Mapping[str, str], name: str, least: int, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < least:
        raise invalid(f"`{name}` must be a whole number, at least {least}")
    return int(text)
