"""What an agent calls: turns, tool calls and records, besides what it waits for."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from dalsegno import _current, _json, _records, _tools, _usage
from dalsegno._attempt import TURNS_CHANNEL, Head, park_fields
from dalsegno._calls import Function
from dalsegno._codec import S
from dalsegno._errors import AlreadyCommitted, CallFailed, Error, Parked
from dalsegno._inbox import Message
from dalsegno._json import encode_channels
from dalsegno._ordinals import Ordinals, Place, Slot
from dalsegno._records import Operation
from dalsegno._space import Space
from dalsegno._turn import Draft, Step, Turn, finish_fields, positions
from dalsegno._waiting import Waiting
from dalsegno._waits import Answer

if TYPE_CHECKING:
    from dalsegno._portal import Portal

AnyRun = TypeVar("AnyRun", bound="Run[Any]")


class Run(Waiting[S]):
    """One attempt at a run. `dalsegno.attach` makes it, once per process; it is a context manager.

    Every method that sends something returns when the gateway has answered, however long that takes. It raises
    `Refused` where the gateway refuses the request. Where another attempt has taken over, or the run is over, the
    process ends instead, at once and whatever the agent catches.
    """

    _portal: Portal | None = None
    """The thread of the requests, where the agent is asynchronous."""

    @classmethod
    def attach(
        cls: type[AnyRun],
        state: type[Any] | None = None,
        *,
        heartbeat: bool = True,
        sigterm: bool = True,
        every: int = 1,
        store_timeout: float | None = None,
        on_resume: Callable[[AnyRun, dict[str, Answer]], object] | None = None,
    ) -> AnyRun:
        """As `dalsegno.attach`, for a subclass. Without `state` the state has no type: it is the JSON as it was
        committed, and `None` on a fresh run."""
        run = cls(state, sigterm=sigterm, store_timeout=store_timeout)
        run._begin(heartbeat, every)
        run._judge_again(on_resume)
        return run

    def __enter__(self) -> Run[S]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the heartbeats. Errors: `Error` where the agent returns without having ended its attempt."""
        try:
            self._end(good=kind is None)
        finally:
            self._leave()

    def turn(self) -> Turn[S]:
        """The next turn, as a context manager: `with run.turn() as turn`. See `Turn`.

        Errors on entry: `Leave`, as `check`; `RuntimeError` while another turn is open. On exit: `Refused`, and
        `Diverged` if an earlier try of the turn made a call that this one did not. Then the turn is not committed.
        """
        return Turn(self)

    def commit(
        self,
        turn: int,
        state: Any = None,
        channels: Mapping[str, Any] | None = None,
        events: Iterable[Any] = (),
        usage: Mapping[str, int] | None = None,
        plan: bool = False,
        calls: Iterable[Mapping[str, Any]] = (),
        finish: Mapping[str, Any] | None = None,
        records: Iterable[Operation] = (),
        open_calls: Iterable[str] = (),
        inbox: Iterable[Message] = (),
        park: Iterable[str] | None = None,
        mode: str = "all",
    ) -> Head:
        """Commits a boundary of `turn`, its result or its `plan`; returns the new head once it is durable.

        `with run.turn()` does this for an agent. Use this one to commit by channels, to plan calls, or to park with a
        boundary. Turns that are held back are committed before it. Errors: for those `Diverged`, as in `turn`.

        state: the whole state, as JSON; dataclasses and pydantic models become objects. It does not change `run.state`.
        channels: only what changed: `{"set": {name: value}, "append": {name: [items]}, "truncate": {name: length},
            "remove": [names]}`. With neither, the state stays as it is.
        events: what happened, in order, for people.
        usage: what this boundary alone spent: `{"tokensIn", "tokensOut", "toolCalls", "costMicroUSD"}`.
        plan: commits the turn's plan; its result follows.
        calls: the calls of a plan: `[{"id", "policy", "arguments"}]`, each with a `"key"` if it shall have its own.
        finish: ends the run: `{"outcome": "succeeded" | "failed", "reason", "message", "output"}`. Not in an open turn.
        records: operations that are applied with the boundary or not at all.
        open_calls: ids of started calls of this attempt that may stay without an outcome. Without them the boundary is
            refused while a call with the policy `probe` or `ask` has none. A finish or a park is refused even with
            them.
        inbox: messages that this boundary takes: no later attempt reads them again, unless a rewind undoes the
            boundary.
        park: ids of waits. The boundary also ends the attempt until they are answered, as `Run.park` does, and this
            process leaves (`Parked`). `mode="any"`: until any of them is answered.
        """
        if finish:
            self._require_no_turn()
        self._flush()
        outcome: dict[str, Any] = {"finish": finish} if finish else {}
        if park is not None:
            outcome["park"] = park_fields(park, mode)
        fields = {
            "events": list(events),
            "usage": usage,
            "records": _records.encode(records),
            "calls": self._calls.with_keys(calls),
            "openCalls": list(open_calls) or None,
            "inbox": positions(inbox) or None,
            "outcome": outcome or None,
        }
        text = None if state is None else _json.dumps(state)
        return self._send_boundary(turn, text, channels, fields, plan)

    def call(
        self,
        id: str,
        *,
        policy: str,
        tool: Function,
        key: str | None = None,
        arguments: Any = None,
        approval: str | None = None,
    ) -> Any:
        """Runs `tool(key, arguments)` unless its outcome is known; returns its result, new or stored.

        `@dalsegno.tool` does this for a function. Use this one to choose the id and the key of each call.

        policy: what to do where the outcome is unknown: `retrySameKey`, `probe`, `ask` or `readOnly`.
        key: the idempotency key; by default it is made of the run's id and `id`.
        approval: the id of the approval that allows this call, see `approval`. The store lets it allow this one call
            and no other.

        Errors: `CallFailed` and `KeyRefused` as the tool raised them, now or earlier; `Uncertain` where the tool may
        have run and must not run again; `Diverged` where the call is stored with other arguments, another policy or
        another key; `Refused` with `APPROVAL_NOT_GRANTED` where nobody has approved, and with `APPROVAL_SPENT` where
        another call has used the approval. Any other exception of the tool passes through and leaves the outcome
        unknown.
        """
        return self._calls.call(id, policy, tool, key, arguments, approval)

    def complete(self, id: str, outcome: str, result: Any = None, usage: Mapping[str, int] | None = None) -> None:
        """Records how a tool ended where `call` could not, because its result was too large or not JSON.

        outcome: `completed`, `failed` or `keyRefused`. usage: what the call spent, as in `commit`, which leaves it out
            then. It counts at once, and once for each call; on an older gateway it counts with the next boundary.

        Errors: `KeyError` where this process has no claim on the call.
        """
        self._calls.complete(id, outcome, result, usage)

    def settle(self, id: str, outcome: str, reason: str, result: Any = None) -> None:
        """Records what a probe found out about an uncertain call: `completed` or `failed`, and how it was found."""
        self._calls.settle(id, outcome, reason, result)

    def adopt(self) -> None:
        """Makes the unsettled `retrySameKey` calls of earlier attempts calls of this process. `attach` does it.

        The gateway then accepts turns and records. The tools do not run: they run when the agent makes the calls again.
        """
        self._calls.adopt()

    def recover(self) -> list[dict[str, Any]]:
        """Brings the unsettled calls of earlier attempts to their end, before the agent goes on.

        It adopts, and then it makes each call of a tool that has a probe, with its stored arguments: if the probe finds
        the effect, its result is stored; if not, the tool runs. A tool is found by the name that the store keeps
        with the call. A call of a version before that is found if its id has the default form. A framework that writes
        records while a turn is open calls this first, because the gateway accepts no records while the outcome of a
        `probe` call is unknown.

        A turn that made a call has to make it again all the same, and gets the outcome, or ends with `Diverged`.

        Returns the calls that are still unsettled, apart from `readOnly` ones: a person settles those with the policy
        `ask`, and code that knows the tool settles the others. Errors: whatever a probe or a tool raises, apart from
        `CallFailed`, which is stored.
        """
        self._calls.adopt()
        for bound in _tools.stored_calls(self):
            with self._calls.recovering(bound.id, is_due=not self.branch), suppress(CallFailed):
                bound.make()
        return self._unsettled()

    def accept(self, *ids: str) -> None:
        """Says that the agent knows of calls that an earlier try of the open turn made, and does not make them.

        Without it the turn ends with `Diverged`, because an effect would be forgotten.
        """
        self._calls.accept(ids)

    def space(self, name: str) -> Space:
        """The records of one space: `put`, `get`, `items` and others. A space needs no creation."""
        return Space(self._transport, name)

    def write(self, *operations: Operation) -> None:
        """Applies a batch of at most 1,000 operations, all or none; it is durable on return. Errors: see `Space`."""
        _records.write(self._transport, operations)

    def finish(
        self, outcome: str = "succeeded", *, reason: str | None = None, message: str | None = None, output: Any = None
    ) -> None:
        """Ends the run where there is no new state.

        outcome: `succeeded` or `failed`. reason: one CamelCase word. message: at most 1 KiB. output: JSON of at most
        4 KiB.

        Errors: `Refused` with `UNSETTLED_CALLS` while the outcome of a call is unknown; `RuntimeError` in an open turn,
        which `Turn.finish` ends with its commit. If turns are held back, also `Diverged`, as in `turn`.
        """
        self._require_no_turn()
        finish = finish_fields(outcome, reason, message, output)
        if self._held:
            self._commit_held(Draft(finish=finish))
        else:
            self._transport.send("finish", {"commitId": str(uuid.uuid4()), "finish": finish})
        self._lease.ended = True

    # What `Turn`, `Tool` and `aio` need.

    def _begin(self, heartbeat: bool, every: int) -> None:
        if every < 1:
            raise ValueError("every: a number of turns from 1")
        self._every, self._held, self._pending = every, 0, Draft()
        self._turn: Turn[S] | None = None
        self._ordinals = Ordinals()
        self._attach(heartbeat)
        _current.enter(self)

    def _judge_again(self, on_resume: Callable[[Any, dict[str, Answer]], object] | None) -> Any:
        """Calls `on_resume` if the run goes on from a checkpoint or from waits; returns what it returns."""
        if on_resume and (self.head or self.waits):
            return on_resume(self, {wait.id: wait.answer for wait in self.waits.values() if wait.answer})
        return None

    def _end(self, good: bool) -> None:
        if good and not self._lease.ended:
            self._flush()
            raise Error("the agent ended without `run.finish`: another attempt would begin where this one has ended")

    def _leave(self) -> None:
        self._lease.stop()
        self._termination.uninstall()
        _current.leave(self)

    def _open(self, turn: Turn[S]) -> None:
        if self._turn is not None:
            raise RuntimeError("a turn is open: a run has one turn at a time")
        self.check()
        turn.number, self._turn = self.next_turn, turn
        self._calls.forget_made()

    def _require_no_turn(self) -> None:
        if self._turn is not None:
            raise RuntimeError("a turn is open: use `turn.finish`")

    def _abandon(self, turn: Turn[S]) -> None:
        """Nobody awaits any more that this turn is open."""
        if self._turn is turn:
            self._turn = None

    def _close(self, turn: Turn[S], draft: Draft, text: str | None) -> None:
        """Commits an open turn with this state, or holds it back. Without a state, or if that fails, it drops the
        turn."""
        self._turn = None
        self._ordinals.clear()
        if text is None:
            return self._drop_turn(turn)
        try:
            self._keep(text, draft)
        except BaseException:
            self._drop_turn(turn)
            raise

    def _drop_turn(self, turn: Turn[S]) -> None:
        self._calls.drop_turn(Place(turn.number, self.planned))
        self._restore()

    def _keep(self, text: str, draft: Draft) -> None:
        pending = self._merge(text, draft)
        if self._held + 1 >= self._every or draft.finish or not pending.fits(text):
            self._send_draft(self.next_turn, text, pending)
        else:
            self._pending, self._saved = pending, text
            self._held += 1
            self.next_turn += 1
            self.planned = False

    def _merge(self, text: str, draft: Draft) -> Draft:
        """The draft behind what is held back. What is held back is committed first if one boundary cannot have
        both."""
        pending = self._pending.merged(draft)
        if self._held and not pending.fits(text):
            self._flush()
            pending = self._pending.merged(draft)
        return pending

    def _flush(self) -> None:
        """Commits turns that are held back, as the last good turn left them."""
        if self._held:
            self._commit_held(Draft())

    def _commit_held(self, draft: Draft) -> None:
        """The boundary holds the turns up to the last good one. `next_turn` stays: its turn may be open."""
        self._send_draft(self.next_turn - 1, self._saved, self._pending.merged(draft))

    def _commit_plan(self, draft: Draft, text: str) -> None:
        """Commits a plan, with the turns that are held back, unless the first of these has a committed plan already."""
        if self.head and self.head.boundary == "plan":
            self._flush()
        self._send_draft(self.next_turn, text, self._merge(text, draft), plan=True)
        self._calls.forget_made()

    def _send_draft(self, turn: int, text: str | None, draft: Draft, plan: bool = False) -> None:
        """Sends a boundary with the turns that are held back, and with `turn`. Errors: also `Diverged`."""
        begin = Place(self.next_turn - self._held, False)
        end = Place(turn, True) if plan else Place(turn + 1, False)
        # Behind a plan nobody can tell which calls of the user's own ids came before it. So this judges them, unless an
        # earlier attempt may have made them in a later turn, or behind a plan that a rewind has undone.
        judges_own_ids = turn == self.next_turn and (not plan or (self._every == 1 and not self.branch))
        self._calls.require_repeated(begin, end, judges_own_ids=judges_own_ids, ends_run=draft.finish is not None)
        fields = {
            "events": draft.events,
            "usage": draft.usage or None,
            "records": _records.encode(draft.records),
            "inbox": draft.inbox or None,
            "outcome": {"finish": draft.finish} if draft.finish else None,
        }
        self._send_boundary(turn, text, None, fields, plan)

    def _send_boundary(
        self, turn: int, text: str | None, channels: Mapping[str, Any] | None, fields: dict[str, Any], plan: bool
    ) -> Head:
        """Sends the boundary that closes, or plans, the agent's `turn`.

        The gateway counts boundaries. Where a boundary holds several turns of the agent, a channel has their number.
        """
        boundary = self._open_turn if self._held else turn - self.next_turn + self._open_turn
        counts = self._every > 1 or TURNS_CHANNEL in self.channels
        if counts:
            count = turn - 1 if plan else turn
            changed = encode_channels(channels or {})
            changed["set"][TURNS_CHANNEL] = {"json": count}
            if text is not None:
                changed["set"]["state"] = {"json": json.loads(text)}
            fields["channels"] = changed
            self.channels[TURNS_CHANNEL] = count
        else:
            fields["state"] = None if text is None else _json.Raw(text)
            fields["channels"] = channels and encode_channels(channels)
        fields = {"commitId": str(uuid.uuid4()), **fields}
        path = f"turns/{boundary}/plan" if plan else f"turns/{boundary}"
        needs = _records.needed(fields["records"])
        with self._calls.counting() as uncounted:
            fields["usage"] = _usage.add(fields["usage"] or {}, uncounted) or None
            if "park" in (fields["outcome"] or {}):
                self._commit_and_leave(path, fields, needs)
            answer = self._transport.send(path, fields, needs=needs)
        self._note_head(Head.decode(answer["head"]), turn, text, plan)
        self._lease.ended = bool(fields["outcome"])
        return Head.decode(answer["head"])

    def _note_head(self, head: Head, turn: int, text: str | None, plan: bool) -> None:
        self.head, self.planned = head, plan
        if turn >= self.next_turn and not plan:
            self._calls.close_turn()
        self._open_turn = head.turn if plan else head.turn + 1
        self.next_turn = turn if plan else turn + 1
        self._held, self._pending = 0, Draft()
        if text is not None:
            self._saved = text

    def _commit_and_leave(self, path: str, fields: Mapping[str, Any], needs: int) -> NoReturn:
        """Sends a boundary that parks, and leaves.

        If its answer was lost, the same bytes are fenced by the boundary's own park; the refusal says that the boundary
        is in the store.
        """
        with self._lease.parking():
            with suppress(AlreadyCommitted):
                self._transport.send(path, fields, needs=needs)
            self._lease.ended = True
        raise Parked("the turn is committed, and the run waits")

    def _take(self, messages: Iterable[Message]) -> None:
        if self._turn is not None:
            self._turn._take(messages)

    def _spend(self, **amounts: int) -> None:
        """Adds to what the step or the tool spends in which this code runs, or else the open turn; see `Turn.spent`."""
        if self._is_in_call():
            _usage.spent(**amounts)
        elif self._turn is not None:
            self._turn.spent(**amounts)

    def _is_in_call(self) -> bool:
        """Whether this code runs in a step or in a tool. A turn that one of these opens is outside of it."""
        counted = _usage.current()
        return counted is not None and (self._turn is None or counted is not self._turn._counted_around)

    def _slot(self, name: str) -> Slot:
        """An id in this turn, behind its plan, or before it, which the call with this name has until its outcome is
        known."""
        part = "before-" if self._turn is None else "planned-" if self.planned else ""
        return self._ordinals.take(f"{part}{self.next_turn}.{name}")

    def _next_id(self, name: str) -> str:
        slot = self._slot(name)
        slot.done()
        return slot.id

    def _anew(self, id: str) -> str:
        """The id of a call that changes nothing. After a rewind it is made anew, so the id names the branch."""
        return f"{id}.b{self.branch}" if self.branch else id

    def _begin_step(self, name: str) -> Step:
        slot = self._slot(name)
        try:
            begun = self._calls.begin(self._anew(slot.id), "readOnly", None, None, None)
        except BaseException:
            slot.reopen()
            raise
        return Step(begun, slot)

    def _end_step(self, step: Step, result: Any) -> Any:
        stored = _json.copy(result)
        self._calls.end(step.begun, "completed", stored)
        step.slot.done()
        return stored
