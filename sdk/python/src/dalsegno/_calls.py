"""Tool calls that have one idempotency key for ever."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from dalsegno import _json
from dalsegno._errors import CallFailed, KeyRefused, Refused, Uncertain
from dalsegno._transport import Transport

NOT_OPENED = ("INVALID", "TOO_LARGE", "APPROVAL_NOT_GRANTED", "APPROVAL_SPENT")
"""The refusals of a claim after which the gateway has certainly stored nothing of it."""

Tool = Callable[[str, Any], Any]
"""A tool takes the call's key and its arguments, and returns a result that is JSON."""


@dataclass(frozen=True, slots=True, eq=False)
class _Claim:
    """The claim of a call: the bytes of each repeat are the same, until the call is over."""

    fields: dict[str, Any]
    runs: Iterator[int] = field(default_factory=itertools.count)  # how often this process has run the tool

    @property
    def id(self) -> str:
        id: str = self.fields["claimId"]
        return id

    @property
    def repeatable(self) -> bool:
        """Whether the tool may run again if its outcome is unknown."""
        return self.fields["policy"] not in ("probe", "ask")


class Calls:
    """The calls of this process that are not over yet.

    Invariant: there is one claim for each call id. It is dropped when the call is over, when the gateway refused its
    bytes, or when another claim holds the call. After any other failure the gateway may have heard it, so the same
    bytes are sent again.
    """

    def __init__(self, transport: Transport, key_prefix: str) -> None:
        self._transport = transport
        self._key_prefix = key_prefix
        self._claims: dict[str, _Claim] = {}

    def call(
        self, id: str, policy: str, tool: Tool, key: str | None, arguments: Any, approval: str | None
    ) -> Any:
        """Claims the call, runs its tool if nothing speaks against it, and returns the result: see `Run.call`."""
        claim = self._claim(id, policy, key, arguments, approval)
        answer = self._send_claim(id, claim)
        call, go = answer["call"], answer["verdict"] == "go"
        state, result = call["state"], call.get("result")
        may_have_run = go and next(claim.runs) > 0
        if answer["verdict"] == "uncertain":
            self._drop(id, claim)  # another claim holds the call
        if state == "started" and (answer["verdict"] == "uncertain" or (may_have_run and not claim.repeatable)):
            raise Uncertain(call)
        if go:
            state, result = _run_tool(tool, call)
            self._send_result(id, claim, state, result)
        self._claims.pop(id, None)
        if state == "completed":
            return result
        raise (CallFailed if state == CallFailed.outcome else KeyRefused)(result)

    def has_open(self) -> bool:
        """Whether a call of this process that must not be made twice has no known outcome."""
        return any(not claim.repeatable for claim in list(self._claims.values()))

    def complete(self, id: str, outcome: str, result: Any) -> None:
        """Records how the tool of a claimed call ended. Errors: `KeyError` where this process has no such claim."""
        self._send_result(id, self._claims[id], outcome, result)

    def settle(self, id: str, outcome: str, reason: str, result: Any) -> None:
        """Records what was found out about an uncertain call."""
        self._transport.send(f"{_path(id)}/settle", {"outcome": outcome, "reason": reason, "result": result})

    def with_keys(self, calls: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The calls of a plan, each with its default key unless it has another."""
        return [{"key": self._key_prefix + call["id"], **call} for call in calls]

    def _claim(self, id: str, policy: str, key: str | None, arguments: Any, approval: str | None) -> _Claim:
        """The call's claim: the one that exists, or a new one. It holds a copy, so that later changes do not reach it.

        Errors: `TypeError` or `ValueError` where the arguments or the key cannot be sent.
        """
        fields = {
            "claimId": str(uuid.uuid4()),
            "policy": policy,
            "key": key or self._key_prefix + id,
            "arguments": arguments,
            "approval": approval,
        }
        return self._claims.setdefault(id, _Claim(_json.copy(fields)))

    def _send_claim(self, id: str, claim: _Claim) -> dict[str, Any]:
        try:
            return self._transport.send(f"{_path(id)}/claim", claim.fields)
        except Refused as refused:
            if refused.code in NOT_OPENED:
                self._drop(id, claim)
            raise

    def _drop(self, id: str, claim: _Claim) -> None:
        """Drops a claim that the gateway has not accepted. Another thread may have made its own by now."""
        if self._claims.get(id) is claim:
            self._claims.pop(id, None)

    def _send_result(self, id: str, claim: _Claim, outcome: str, result: Any) -> None:
        self._transport.send(f"{_path(id)}/complete", {"claimId": claim.id, "outcome": outcome, "result": result})


def _run_tool(tool: Tool, call: Mapping[str, Any]) -> tuple[str, Any]:
    """The outcome and the result of a tool. Any other exception passes through: it leaves the outcome unknown."""
    try:
        return "completed", tool(call["key"], call.get("arguments"))
    except (CallFailed, KeyRefused) as refusal:
        return refusal.outcome, refusal.result


def _path(id: str) -> str:
    return f"calls/{quote(id, safe='')}"
