"""New connections: a gateway that is gone does not delay a request."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from dalsegno._connect import CONNECT_SECONDS, connect


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


def test_an_address_that_does_not_answer_costs_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    with lost_gateway() as lost, closing(socket.create_server(("127.0.0.1", 0))) as live:
        names(monkeypatch, lost, live)
        began = time.monotonic()
        with closing(connect(("gateway", 80), timeout=2)) as connection:
            assert connection.getpeername() == live.getsockname()
            assert connection.gettimeout() == 2
        assert time.monotonic() - began < CONNECT_SECONDS / 2


def test_another_attempt_to_the_same_address_may_reach_another_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    with lost_gateway() as service:
        names(monkeypatch, service)
        # The address leads to a gateway that accepts a little later. The first attempt is repeated only after 1 s.
        threading.Timer(0.25, service.accept).start()
        began = time.monotonic()
        connect(("gateway", 80), timeout=2).close()
        assert 0.2 < time.monotonic() - began < CONNECT_SECONDS


def test_no_attempt_outlasts_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with lost_gateway() as lost:
        names(monkeypatch, lost)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            connect(("gateway", 80), timeout=30)
        assert time.monotonic() - began < CONNECT_SECONDS + 0.5


def test_a_refusal_is_reported_at_once_after_each_address_has_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as one, closing(socket.create_server(("127.0.0.1", 0))) as two:
        names(monkeypatch, one, two)
    # Both are closed now.
    began = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        connect(("gateway", 80), timeout=2)
    assert time.monotonic() - began < CONNECT_SECONDS / 2
