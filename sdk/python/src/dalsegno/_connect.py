"""New connections to a gateway: attempts race, so that a gateway that is gone costs a moment and not the lease."""

from __future__ import annotations

import errno
import itertools
import os
import selectors
import socket
import time
from typing import Any

CONNECT_SECONDS = 1
"""How long all attempts together may take."""

STAGGER_SECONDS = 0.1
"""After so long without a connection another attempt starts beside the earlier ones."""


def connect(address: tuple[str, int], timeout: float, source_address: tuple[str, int] | None = None) -> socket.socket:
    """Connects to the first address of the name that accepts. The arguments are those of `socket.create_connection`.

    A cluster's service has one address for all gateways, and each attempt may lead to another one. So attempts are
    also repeated while earlier ones to the same address are waiting.

    Errors: `OSError`, of the last address if each has refused.
    """
    addresses = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    targets = itertools.cycle(addresses)
    next_start = time.monotonic()
    deadline = next_start + min(timeout, CONNECT_SECONDS)
    refusals: list[OSError] = []
    with selectors.DefaultSelector() as attempts:
        try:
            while (now := time.monotonic()) < deadline:
                if now >= next_start:
                    next_start = now + STAGGER_SECONDS
                    _start(attempts, next(targets), source_address)
                for key, _ in attempts.select(max(0, min(next_start, deadline) - time.monotonic())):
                    connection: socket.socket = key.data
                    attempts.unregister(connection)
                    refusal = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if not refusal:
                        connection.settimeout(timeout)
                        return connection
                    connection.close()
                    refusals.append(OSError(refusal, os.strerror(refusal)))
                    if len(refusals) < len(addresses):
                        next_start = now  # try the next address at once
                if len(refusals) >= len(addresses) and not attempts.get_map():
                    raise refusals[-1]
            raise TimeoutError(errno.ETIMEDOUT, f"no gateway accepted a connection within {CONNECT_SECONDS} s")
        finally:
            for key in list(attempts.get_map().values()):
                key.data.close()


def _start(attempts: selectors.BaseSelector, target: tuple[Any, ...], source_address: tuple[str, int] | None) -> None:
    """Starts one attempt. A refusal that is known at once is found by the selector like a later one."""
    family, kind, protocol, _, address = target
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    if source_address:
        connection.bind(source_address)
    connection.connect_ex(address)
    attempts.register(connection, selectors.EVENT_WRITE, connection)
