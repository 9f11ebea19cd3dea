"""New connections: a gateway that is gone does not delay a request."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from dalsegno import _connect
from dalsegno._connect import CONNECT_SECONDS, connect

PATIENCE_SECONDS = 60
"""In place of `CONNECT_SECONDS`, where an attempt must not fail because the machine is busy."""


@contextmanager
def lost_gateway() -> Iterator[socket.socket]:
    """A listener that answers no attempt, as if its node had lost the network: its queue is full."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as server:
        first = socket.create_connection(server.getsockname())
        with closing(first):
            yield server


def names(monkeypatch: pytest.MonkeyPatch, *servers: socket.socket) -> None:
    """The name of the gateways has these addresses, in this order."""
    found: list[Any] = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", server.getsockname()) for server in servers]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def at_best(seconds: float, act: Callable[[], object]) -> float:
    """How many seconds it takes. A busy machine may add some, so up to ten tries are made to take fewer."""
    best = math.inf
    for _ in range(10):
        began = time.monotonic()
        act()
        best = min(best, time.monotonic() - began)
        if best < seconds:
            break
    return best


def test_an_address_that_does_not_answer_costs_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connect, "CONNECT_SECONDS", PATIENCE_SECONDS)
    with lost_gateway() as lost, closing(socket.create_server(("127.0.0.1", 0))) as live:
        names(monkeypatch, lost, live)

        def reach() -> None:
            with closing(connect(("gateway", 80), timeout=PATIENCE_SECONDS)) as connection:
                assert connection.getpeername() == live.getsockname()
                assert connection.gettimeout() == PATIENCE_SECONDS

        assert at_best(0.5, reach) < 0.5


def test_another_attempt_to_the_same_address_may_reach_another_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connect, "CONNECT_SECONDS", PATIENCE_SECONDS)

    def reach() -> None:
        with lost_gateway() as service:
            names(monkeypatch, service)
            began = time.monotonic()
            # The address leads to a gateway that accepts a little later.
            threading.Timer(0.25, service.accept).start()
            connect(("gateway", 80), timeout=PATIENCE_SECONDS).close()
            assert time.monotonic() - began > 0.2

    assert at_best(0.9, reach) < 0.9, "the kernel repeats the first attempt only after 1 s"


def test_no_attempt_outlasts_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with lost_gateway() as lost:
        names(monkeypatch, lost)

        def fail() -> None:
            with pytest.raises(TimeoutError):
                connect(("gateway", 80), timeout=5)

        assert at_best(CONNECT_SECONDS + 0.5, fail) < CONNECT_SECONDS + 0.5


def test_a_refusal_is_reported_at_once_after_each_address_has_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connect, "CONNECT_SECONDS", PATIENCE_SECONDS)
    with closing(socket.create_server(("127.0.0.1", 0))) as one, closing(socket.create_server(("127.0.0.1", 0))) as two:
        names(monkeypatch, one, two)
    # Both are closed now.

    def fail() -> None:
        with pytest.raises(ConnectionRefusedError):
            connect(("gateway", 80), timeout=PATIENCE_SECONDS)

    monkeypatch.setattr(_connect, "STAGGER_SECONDS", PATIENCE_SECONDS)
    assert at_best(0.5, fail) < 0.5
