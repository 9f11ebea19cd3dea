"""Requests to the gateway, each sent as the same bytes until it is answered."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, InvalidURL
from typing import Any
from urllib.parse import SplitResult

from dalsegno import _env, _wire
from dalsegno._connect import connect
from dalsegno._leave import leave_store
from dalsegno._tls import TlsConnection
from dalsegno._wire import Again, Ok, Outcome, Refusal

logger = logging.getLogger("dalsegno")


@dataclass(frozen=True, slots=True)
class _Reply:
    """What came of one try, and the text of its `Retry-After` header."""

    outcome: Outcome
    retry_after: str = ""


class _Connections(threading.local):
    """The connections of one thread, by process id: a forked process must not write to its parent's."""

    def __init__(self) -> None:
        self.by_pid: dict[int, HTTPConnection] = {}


class Transport:
    """The way to the gateway of one run. Each thread of each process keeps a connection of its own.

    `instance` is the secret of this process, the bearer of every request after attach. `on_answer` is called with each
    answer. `on_refusal` is called with the request's name and its refusal; it raises, or returns to have the request
    sent again. `store_timeout`: for how many seconds a request, apart from heartbeats, is sent again.
    """

    def __init__(
        self,
        url: SplitResult,
        instance: str,
        *,
        on_answer: Callable[[dict[str, Any]], None],
        on_refusal: Callable[[str, Refusal], None],
        store_timeout: float | None = None,
    ) -> None:
        self._url = url
        self._instance = instance
        self._on_answer = on_answer
        self._on_refusal = on_refusal
        self._store_timeout = store_timeout
        self._connections = _Connections()
        self._contract = 1  # the lowest version among the gateways, as the last attach said

    def send(
        self,
        path: str,
        fields: Mapping[str, Any] | None = None,
        method: str = "POST",
        timeout: float = 30,
        held: float = 0,
        needs: int = 1,
    ) -> dict[str, Any]:
        """Sends a request until it is answered, and returns the answer.

        No try and no wait is longer than `timeout` seconds, or than the store's timeout if that is shorter. The body is
        serialised once. After a failure the next try uses a new connection, which may lead to another gateway.

        held: for so many seconds a gateway that works may hold the request; they do not count for the store's timeout.
        needs: the version of the contract that has what the request says.

        Errors: `Refused`, `InvalidURL`, `StoreUnavailable`, and whatever `encode` and reading the token raise.
        """
        self._await_contract(path, timeout, needs)
        name = _wire.log_name(path)
        body = _wire.encode(name, fields)
        patience = math.inf
        if self._store_timeout is not None and name != "heartbeat":
            patience = self._store_timeout + held
            timeout = min(timeout, patience)
        began = time.monotonic()
        connection = self._connection(timeout)
        for delay in _wire.backoff():
            reply = self._try(connection, method, path, body)
            if isinstance(reply.outcome, Ok):
                if path == "attach":
                    self._contract = reply.outcome.answer.get("contract", 1)
                self._on_answer(reply.outcome.answer)
                return reply.outcome.answer
            if isinstance(reply.outcome, Refusal):
                self._on_refusal(name, reply.outcome)
            connection.close()
            left = patience - (time.monotonic() - began)
            if left <= 0:
                leave_store(name, _reason(reply.outcome))
            if delay == _wire.MAX_BACKOFF_SECONDS:
                logger.warning("%s: no answer yet (%s), sending it again", name, _reason(reply.outcome))
            pause = max(random.uniform(delay / 2, delay), _wire.retry_after(reply.retry_after, timeout))
            time.sleep(min(pause, left))
        raise AssertionError("the backoff never ends")

    @property
    def has_additions(self) -> bool:
        """Whether every gateway had `_wire.ADDITIONS` at the last attach. Without them there is another way."""
        return self._contract >= _wire.ADDITIONS

    def _await_contract(self, path: str, timeout: float, needs: int) -> None:
        """Waits until every gateway has the call with this path.

        During a roll-out the next request may reach a gateway of the version before, which would refuse it for good.
        Attaching again with the same instance asks for the version.
        """
        needed, logged = max(needs, _wire.contract_of(path)), False
        while self._contract < needed:
            self.send("attach", {"instance": self._instance}, timeout=timeout)
            if self._contract < needed:
                if not logged:
                    logger.warning("%s: waits until every gateway is of a version that has it", _wire.log_name(path))
                logged = True
                time.sleep(_wire.ROLL_OUT_SECONDS)

    def _try(self, connection: HTTPConnection, method: str, path: str, body: bytes | None) -> _Reply:
        """Sends a request once. Errors: `InvalidURL`, because what was never sent needs no second try."""
        headers = {"Authorization": f"Bearer {self._bearer(path)}", "Content-Type": "application/json"}
        try:
            connection.request(method, f"{self._url.path.rstrip('/')}/{path}", body, headers)
            response = connection.getresponse()
            text = response.read()
            return _Reply(_wire.classify(response.status, text), response.headers.get("Retry-After", ""))
        except InvalidURL:
            raise
        except (OSError, HTTPException, json.JSONDecodeError, UnicodeDecodeError) as error:
            return _Reply(Again(str(error)))  # the gateway may have heard it

    def _bearer(self, path: str) -> str:
        return _env.read_token() if path == "attach" else self._instance

    def _connection(self, timeout: float) -> HTTPConnection:
        """This thread's connection in this process."""
        kind = TlsConnection if self._url.scheme == "https" else HTTPConnection
        if (kept := self._connections.by_pid.get(os.getpid())) is not None:
            kept.timeout = timeout
            if kept.sock is not None:
                kept.sock.settimeout(timeout)
            return kept
        connection = kind(self._url.netloc, timeout=timeout)
        connection._create_connection = connect  # type: ignore[attr-defined]
        return self._connections.by_pid.setdefault(os.getpid(), connection)


def _reason(outcome: Again | Refusal) -> str:
    return outcome.reason if isinstance(outcome, Again) else str(outcome.status)
