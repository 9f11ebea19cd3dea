"""Tool calls that have one idempotency key for ever."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from dalsegno import _json, _usage, _wire
from dalsegno._errors import CallFailed, Diverged, KeyRefused, Refused, Uncertain
from dalsegno._ordinals import Place, place_of
from dalsegno._transport import Transport

NOT_OPENED = ("INVALID", "TOO_LARGE", "APPROVAL_NOT_GRANTED", "APPROVAL_SPENT")
"""The refusals of a claim after which the gateway has certainly stored nothing of it."""

Function = Callable[[str, Any], Any]
"""A tool of `Run.call` takes the call's key and its arguments, and returns a result that is JSON."""


@dataclass(frozen=True, slots=True, eq=False)
class _Claim:
    """The claim of a call: the bytes of each repeat are the same, until the call is over."""

    fields: dict[str, Any]
    content: tuple[str, str, str]
    """Policy, key and canonical arguments of the call: what was stored first stays."""
    runs: Iterator[int] = field(default_factory=itertools.count)  # how often this process has run the tool

    @property
    def id(self) -> str:
        id: str = self.fields["claimId"]
        return id

    @property
    def repeatable(self) -> bool:
        """Whether the tool may run again if its outcome is unknown."""
        return self.fields["policy"] not in ("probe", "ask")


@dataclass(frozen=True, slots=True)
class Begun:
    """A call that was claimed: its tool has to run, or it is over and has its `result`."""

    id: str
    claim: _Claim | None
    """`None` where a probe has found that the call of an earlier attempt took no effect."""
    must_run: bool
    key: str
    arguments: Any
    result: Any
    usage: dict[str, int] = field(default_factory=dict[str, int])
    """What the tool says that it has spent: see `spent`."""

    def running(self) -> AbstractContextManager[None]:
        """While the tool runs, `spent` counts for this call."""
        return _usage.spending(self.usage)


@dataclass(slots=True)
class _Earlier:
    """A call of an earlier try of the open turn, or an unsettled one."""

    call: dict[str, Any]
    place: Place | None
    """Where the agent made it; `None` where an earlier attempt made it under an id of the user's own."""
    in_open_turn: bool
    """Whether an earlier attempt made it in the gateway's open turn."""

    @classmethod
    def found(cls, call: dict[str, Any], open_turn: int, planned: int | None) -> _Earlier:
        """A call in the answer to attach. See `Calls.take_over`."""
        place, in_open_turn = place_of(call["id"], call.get("tool")), call["turn"] == open_turn
        if planned is None or not in_open_turn or (place is not None and place >= Place(planned, True)):
            return cls(call, place, in_open_turn)
        return cls.never_due(call)

    @classmethod
    def never_due(cls, call: dict[str, Any]) -> _Earlier:
        """A call that nobody has to repeat, because the plan at the head has committed it, or may have."""
        return cls(call, None, False)

    def is_due(self, begin: Place, end: Place, judges_own_ids: bool, ends_run: bool) -> bool:
        """Whether a boundary forgets an effect without it. See `Calls.require_repeated`."""
        if self.call["policy"] == "readOnly":
            return False
        if self.place is None:
            return self.in_open_turn and (judges_own_ids or ends_run)
        return begin <= self.place < end or (self.in_open_turn and ends_run)


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
        self._inherited: dict[str, _Earlier] = {}
        """By id: calls of earlier tries of the open turn, and unsettled ones, which this try has not made."""
        self._made: dict[str, dict[str, Any]] = {}
        """By id: the calls of this try of the open turn."""
        self._uncounted: dict[str, int] = {}  # what calls have spent and no gateway has counted

    def take_over(self, answer: Mapping[str, Any], open_turn: int, planned: int | None) -> None:
        """Takes the calls of earlier attempts from the answer to attach.

        open_turn: as the gateway counts. planned: the agent's turn whose plan is the head. Then the store does not say
        whether a call came before the plan, and the id says it. Of the user's own ids none is required.
        """
        for call in (*answer["completedCalls"], *answer["unsettledCalls"]):
            self._inherited[call["id"]] = _Earlier.found(call, open_turn, planned)

    def forget_made(self) -> None:
        """The next try need not repeat what was done so far: a turn begins, or its plan is committed."""
        self._made.clear()

    def drop_turn(self, place: Place) -> None:
        """The agent's turn is not committed behind this place. Its next try has to make the same calls."""
        self._inherited.update({id: _Earlier(call, place, False) for id, call in self._made.items()})
        self._made.clear()

    @contextmanager
    def recovering(self, id: str, *, is_due: bool) -> Generator[None]:
        """What is made of this call here is made for its turn, which still has to make the call.

        is_due: false after a rewind, because the turn may be undone.
        """
        earlier = self._inherited.get(id)
        try:
            yield
        finally:
            made = self._made.pop(id, None)
            if earlier is not None and made is not None and is_due:
                self._inherited[id] = replace(earlier, call=made)

    def close_turn(self) -> None:
        """A boundary has closed the gateway's turn with the agent's. The next one does not judge calls of the user's
        own ids again."""
        for earlier in self._inherited.values():
            earlier.in_open_turn = earlier.in_open_turn and earlier.place is not None

    @contextmanager
    def counting(self) -> Generator[dict[str, int]]:
        """What calls have spent and no gateway has counted, for a boundary. It is kept if that fails."""
        taken = _usage.take(self._uncounted)
        try:
            yield taken
        except BaseException:
            _usage.add_to(self._uncounted, taken)
            raise

    def begin(
        self,
        id: str,
        policy: str,
        key: str | None,
        arguments: Any,
        approval: str | None,
        tool: str | None = None,
    ) -> Begun:
        """Claims a call. If its tool has to run, run it and call `end`. `tool`: the tool's name, which the store keeps.

        Errors: `Uncertain`, `Diverged`, and the refusals of the tool that are stored; see `Run.call`.
        """
        claim = self._claim(id, policy, key, arguments, approval, tool)
        self._compare(id, claim)
        answer = self._send_claim(id, claim)
        call, go = answer["call"], answer["verdict"] == "go"
        state, result = call["state"], call.get("result")
        may_have_run = go and next(claim.runs) > 0
        if answer["verdict"] == "uncertain":
            self._drop(id, claim)  # another claim holds the call
        else:
            self._inherited.pop(id, None)
            self._made[id] = call
        if state == "started" and (answer["verdict"] == "uncertain" or (may_have_run and not claim.repeatable)):
            raise Uncertain(call)
        if not go:
            self._drop(id, claim)
            if state != "completed":
                raise (CallFailed if state == CallFailed.outcome else KeyRefused)(result)
        return Begun(id, claim, go, call["key"], call.get("arguments"), result)

    def end(self, begun: Begun, outcome: str, result: Any) -> None:
        """Records how the tool of a call ended, and what it spent."""
        assert begun.claim is not None
        self._send_result(begun.id, begun.claim, outcome, result, begun.usage)

    def call(
        self, id: str, policy: str, function: Function, key: str | None, arguments: Any, approval: str | None
    ) -> Any:
        """Claims the call, runs its tool if nothing speaks against it, and returns the result: see `Run.call`."""
        begun = self.begin(id, policy, key, arguments, approval)
        if not begun.must_run:
            return begun.result
        try:
            with begun.running():
                result = function(begun.key, begun.arguments)
        except (CallFailed, KeyRefused) as refusal:  # any other exception leaves the outcome unknown
            self.end(begun, refusal.outcome, refusal.result)
            raise
        self.end(begun, "completed", result)
        return result

    def adopt(self) -> None:
        """Claims the unsettled `retrySameKey` calls of earlier attempts again, with what is stored of them.

        From then on they are calls of this process, and the gateway accepts boundaries and records.
        """
        for call in self.inherited():
            id = call["id"]
            if call["policy"] == "retrySameKey" and call["state"] == "started" and id not in self._claims:
                claim = _Claim({"claimId": str(uuid.uuid4()), "policy": call["policy"]}, _content(call))
                self._claims[id] = claim
                self._send_claim(id, claim)

    def inherited(self) -> list[dict[str, Any]]:
        """The calls of earlier tries that this one has neither made again, nor settled, nor accepted."""
        return [earlier.call for earlier in list(self._inherited.values())]

    def accept(self, ids: Iterable[str]) -> None:
        """Says that this process knows of these calls of earlier tries, and does not make them again."""
        for id in ids:
            self._inherited.pop(id, None)

    def require_repeated(self, begin: Place, end: Place, *, judges_own_ids: bool, ends_run: bool) -> None:
        """Errors: `Diverged` if an earlier try made a call between these places that this one has not made.

        A boundary of the gateway may hold several of the agent's turns, and the attempt before may have committed
        less often. So where the place of a call is known, that decides; later calls are made when their turns come.
        A plan ends before what is behind it.
        judges_own_ids: nothing that comes after the boundary may still make a call of the user's own id that an earlier
        attempt made in the open turn. ends_run: no turn comes after it, so whatever an earlier attempt made in the open
        turn has to be repeated.
        """
        for id, earlier in self._inherited.items():
            if earlier.is_due(begin, end, judges_own_ids, ends_run):
                raise Diverged(
                    f"an earlier try of this turn made the call {id!r}, and this one did not: what decides about a "
                    "call belongs into `turn.step`. If it shall stay as it is, name it in `run.accept`"
                )

    def has_open(self) -> bool:
        """Whether a call of this process that must not be made twice has no known outcome."""
        return any(not claim.repeatable for claim in list(self._claims.values()))

    def complete(self, id: str, outcome: str, result: Any, usage: Mapping[str, int] | None) -> None:
        """Records how the tool of a claimed call ended. Errors: `KeyError` where this process has no such claim."""
        self._send_result(id, self._claims[id], outcome, result, usage)

    def settle(
        self, id: str, outcome: str, reason: str, result: Any, usage: Mapping[str, int] | None = None
    ) -> None:
        """Records what was found out about an uncertain call. The next boundary says what it has spent."""
        self._transport.send(f"{_path(id)}/settle", {"outcome": outcome, "reason": reason, "result": result})
        _usage.add_to(self._uncounted, usage or {})
        self._claims.pop(id, None)
        self._note_outcome(id, outcome)

    def with_keys(self, calls: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The calls of a plan, each with its default key unless it has another."""
        return [{"key": self._key_prefix + call["id"], **call} for call in calls]

    def _claim(
        self, id: str, policy: str, key: str | None, arguments: Any, approval: str | None, tool: str | None
    ) -> _Claim:
        """The call's claim: the one that exists, or a new one. It holds a copy, so that later changes do not reach it.

        Errors: `TypeError` or `ValueError` where the arguments or the key cannot be sent. `Diverged` where the claim
        that exists says something else.
        """
        fields = {
            "claimId": str(uuid.uuid4()),
            "policy": policy,
            "key": key or self._key_prefix + id,
            "arguments": arguments,
            "approval": approval,
            "tool": tool if self._transport.has_additions else None,
        }
        new = _Claim(_json.copy(fields), (policy, fields["key"] or "", _json.canonical(arguments)))
        claim = self._claims.setdefault(id, new)
        if not _same(claim.content, new.content):
            raise _diverged(id)
        return claim

    def _compare(self, id: str, claim: _Claim) -> None:
        """Errors: `Diverged` if an earlier attempt made the call with something else."""
        known = self._inherited.get(id)
        if known and not _same(claim.content, _content(known.call)):
            self._drop(id, claim)
            raise _diverged(id)

    def _send_claim(self, id: str, claim: _Claim) -> dict[str, Any]:
        try:
            return self._transport.send(f"{_path(id)}/claim", claim.fields)
        except Refused as refused:
            if refused.code in NOT_OPENED:
                self._drop(id, claim)
            if _wire.is_divergence(refused):
                raise _diverged(id) from refused
            raise

    def _drop(self, id: str, claim: _Claim) -> None:
        """Drops a claim: the call is over, or the gateway has not accepted it. Another thread may have made its own by
        now."""
        if self._claims.get(id) is claim:
            self._claims.pop(id, None)

    def _send_result(
        self, id: str, claim: _Claim, outcome: str, result: Any, usage: Mapping[str, int] | None
    ) -> None:
        """Sends how a call ended. An older gateway counts no usage of calls: the next boundary says it then."""
        counts = self._transport.has_additions
        fields: dict[str, Any] = {"claimId": claim.id, "outcome": outcome, "result": result}
        if counts:
            fields["usage"] = usage or None
        self._transport.send(f"{_path(id)}/complete", fields)
        if not counts:
            _usage.add_to(self._uncounted, usage or {})
        self._drop(id, claim)
        self._note_outcome(id, outcome)

    def _note_outcome(self, id: str, outcome: str) -> None:
        """The call is over, and this try has made it."""
        earlier = self._inherited.pop(id, None)
        call = earlier.call if earlier else self._made.get(id)
        if call is not None:
            self._made[id] = {**call, "state": outcome}


def _content(call: Mapping[str, Any]) -> tuple[str, str, str]:
    return call["policy"], call["key"], _json.canonical(call.get("arguments"))


def _same(one: tuple[str, str, str], other: tuple[str, str, str]) -> bool:
    """Whether two claims are of one call. One without arguments has those of the other."""
    return one[:2] == other[:2] and (one[2] == other[2] or "null" in (one[2], other[2]))


def _diverged(id: str) -> Diverged:
    return Diverged(
        f"the call {id!r} is stored with other arguments, another policy or another key: give another effect another id"
    )


def _path(id: str) -> str:
    return f"calls/{quote(id, safe='')}"
