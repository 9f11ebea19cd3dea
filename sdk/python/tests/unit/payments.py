"""The tools that tests pay with: their bank, and a crash after its effect."""

from __future__ import annotations

import pytest

from dalsegno import CallFailed, tool
from test_turn import Crash


class Bank:
    """A ledger that a test looks at, and a crash after its effect."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.crash = False

    def pay(self, key: str) -> str:
        if key not in self.entries:
            self.entries.append(key)
        if self.crash:
            raise Crash
        return f"receipt {self.entries.index(key)}"


bank = Bank()


@pytest.fixture(autouse=True)
def fresh_bank() -> None:
    bank.__init__()  # type: ignore[misc]


@tool(policy="retrySameKey", name="pay")
def pay(cents: int, to: str = "ann", *, key: str = "") -> str:
    """Pays somebody."""
    return bank.pay(key)


def find(cents: int, *, key: str) -> str:
    if key not in bank.entries:
        raise CallFailed
    return f"found {cents}"


@tool(policy="probe", probe=find)
def probed(cents: int, *, key: str = "") -> str:
    return bank.pay(key)


@tool(policy="ask")
def asked(cents: int, *, key: str = "") -> str:
    return bank.pay(key)


def raise_crash() -> None:
    raise Crash
