"""What an agent calls: turns, tool calls, records, waits and messages."""

from __future__ import annotations

import sys
import time as clock
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn

from dalsegno import _inbox, _records
from dalsegno._attempt import Attempt, park_fields
from dalsegno._calls import Tool
from dalsegno._errors import Refused
from dalsegno._inbox import Message
from dalsegno._json import encode_channels
from dalsegno._records import Operations
from dalsegno._waits import Answer, Wait, encode_seconds, encode_time


class Run(Attempt):
    """One attempt at a run. Attach once per process, with `Run.attach()`.

    Every method that sends something returns when the gateway has answered, however long that takes. It raises
    `Refused` where the gateway refuses the request. Where another attempt has taken over, or the run is over, the
    process ends instead, at once and whatever the agent catches.
    """

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
        records: Operations = (),
        open_calls: Iterable[str] = (),
        inbox: Iterable[Message] = (),
        park: Iterable[str] | None = None,
        mode: str = "all",
    ) -> dict[str, Any]:
        """Commits a boundary of `turn`, its result or its `plan`; returns the gateway's answer once it is durable.

        state: the whole state.
        channels: only what changed: `{"set": {name: value}, "append": {name: [items]}, "truncate": {name: length},
            "remove": [names]}`. With neither, the state stays as it is.
        events: what happened, in order, for people.
        usage: what this boundary alone spent: `{"tokensIn", "tokensOut", "toolCalls", "costMicroUSD"}`.
        plan: commits the turn's plan; its result follows.
        calls: the calls of a plan: `[{"id", "policy", "arguments"}]`, each with a `"key"` if it shall have its own.
        finish: ends the run: `{"outcome": "succeeded" | "failed", "reason", "message", "output"}`.
        records: operations, as `write_records` takes them, that are applied with the boundary or not at all.
        open_calls: ids of started calls of this attempt that may stay without an outcome. Without them the boundary is
            refused while a call with the policy `probe` or `ask` has none. A finish or a park is refused even with
            them.
        inbox: messages that this boundary takes: no later attempt reads them again, unless a rewind undoes the
            boundary.
        park: ids of waits. The boundary also ends the attempt until they are answered, as `Run.park` does, and this
            process exits with 0. `mode="any"`: until any of them is answered. Code after the commit does not run.
        """
        outcome = finish and {"finish": finish}
        if park is not None:
            outcome = {**(outcome or {}), "park": park_fields(park, mode)}
        fields = {
            "commitId": str(uuid.uuid4()),
            "state": state,
            "channels": channels and encode_channels(channels),
            "events": list(events),
            "usage": usage,
            "records": _records.encode(records),
            "calls": self._calls.with_keys(calls),
            "openCalls": list(open_calls) or None,
            "inbox": [message.position for message in inbox] or None,
            "outcome": outcome,
        }
        path = f"turns/{turn}/plan" if plan else f"turns/{turn}"
        if park is not None:
            self._commit_and_leave(path, fields)
        answer = self._transport.send(path, fields)
        self.head = answer["head"]
        self.planned = plan
        self.turn = turn if plan else turn + 1
        self._lease.ended = bool(finish)
        return answer

    def call(
        self,
        id: str,
        *,
        policy: str,
        tool: Tool,
        key: str | None = None,
        arguments: Any = None,
        approval: str | None = None,
    ) -> Any:
        """Runs `tool(key, arguments)` unless its outcome is known; returns its result, new or stored.

        policy: what to do where the outcome is unknown: `retrySameKey`, `probe`, `ask` or `readOnly`.
        key: the idempotency key; by default it is made of the run's id and `id`.
        approval: the id of the approval that allows this call, see `ask_approval`. The store lets it allow this one
            call and no other.

        Errors: `CallFailed` and `KeyRefused` as the tool raised them, now or earlier; `Uncertain` where the tool may
        have run and must not run again; `Refused` with `APPROVAL_NOT_GRANTED` where nobody has approved, and with
        `APPROVAL_SPENT` where another call has used the approval. Any other exception of the tool passes through and
        leaves the outcome unknown.
        """
        return self._calls.call(id, policy, tool, key, arguments, approval)

    def complete(self, id: str, outcome: str, result: Any = None) -> None:
        """Records how a tool ended where `call` could not, because its result was too large or not JSON.

        outcome: `completed`, `failed` or `keyRefused`. Errors: `KeyError` where this process has no claim on the call.
        """
        self._calls.complete(id, outcome, result)

    def settle(self, id: str, outcome: str, reason: str, result: Any = None) -> None:
        """Records what a probe found out about an uncertain call: `completed` or `failed`, and how it was found."""
        self._calls.settle(id, outcome, reason, result)

    def write_records(self, operations: Operations) -> None:
        """Applies a batch of at most 1,000 operations, all or none; it is durable on return.

        operations: `[{"put" | "putIfAbsent": {"space", "key", "value"}}, {"append": {"space", "key", "entryId",
            "value"}}, {"delete": {"space", "key"}}]`.
        """
        _records.write(self._transport, operations)

    def records(self, space: str, prefix: str = "") -> Iterator[dict[str, Any]]:
        """Yields the entries under keys that begin with `prefix`, by key and then as they were added.

        Each is `{"key", "entryId", "value", "turn"}`; only an appended one has an `entryId`. Pages are fetched as
        needed.
        """
        return _records.read(self._transport, space, prefix)

    def finish(self, outcome: str, **more: Any) -> None:
        """Ends the run where there is no new state.

        outcome: `succeeded` or `failed`. more: `reason`, `message` and `output`.
        """
        self._transport.send("finish", {"commitId": str(uuid.uuid4()), "finish": {"outcome": outcome, **more}})
        self._lease.ended = True

    def wait(
        self,
        id: str,
        kind: str,
        *,
        title: str | None = None,
        summary: str | None = None,
        proposal: Any = None,
        answer_schema: Any = None,
        time: datetime | None = None,
        topic: str | None = None,
        provider: str | None = None,
        reset_time: datetime | None = None,
        deadline: float | timedelta | None = None,
        on_timeout: str | None = None,
    ) -> Wait:
        """Opens a wait and returns it at once. With the same arguments it returns the same wait, in later attempts too;
        `time` and `reset_time` may differ, and what was given first stays.

        kind: `approval` (with `title` and `proposal`, perhaps `summary` and `answer_schema`), `until` (with `time`),
            `message` (of a `topic`, or of any), or `rateLimit` (with `provider`, perhaps `reset_time`).
        deadline: seconds, or a `timedelta`, from the opening; then `on_timeout` says what happens: `Answer` (the
            outcome is `timedOut`; the default), `Hold` (a person is needed) or `Fail` (the run fails).

        `park`, or a boundary's `park`, then gives the pod back until waits are answered. Each kind also has a method
        that does both. A run may have 64 open waits.

        Errors: `Refused` with `INVALID` where a wait with this id was opened with other arguments, with
        `TOO_MANY_WAITS`, or with `TOO_LARGE`. `ValueError` where a time has no time zone.
        """
        fields = {
            "title": title,
            "summary": summary,
            "proposal": proposal,
            "answerSchema": answer_schema,
            "time": encode_time(time),
            "topic": topic,
            "provider": provider,
            "resetTime": encode_time(reset_time),
            "deadlineSeconds": encode_seconds(deadline),
            "onTimeout": on_timeout,
        }
        return self._waits.open(id, {"kind": kind, **fields})

    def ask_approval(
        self,
        id: str,
        *,
        title: str,
        proposal: Any,
        summary: str | None = None,
        answer_schema: Any = None,
        deadline: float | timedelta | None = None,
        on_timeout: str | None = None,
        hold_pod_seconds: float = 0,
    ) -> Answer:
        """Asks a person, and returns the answer: look at its `approved`, `timed_out`, `changes` and `reason`.

        While nobody has answered, the process parks and exits with 0; the next attempt calls this again with the same
        arguments, and gets the answer. So commit what the proposal was made from before: a model that is asked again
        says something else.

        title, summary: what people read, as the agent's words. proposal: what they decide on, any JSON but null, up to
            1 MiB.
        answer_schema: a JSON schema of the changes that they may make. deadline, on_timeout: see `wait`.
        hold_pod_seconds: how long to wait in this process before parking, for answers that come quickly.

        Without `call(…, approval=id)` an approval is advice: with it, the store refuses the call unless it is approved.
        Errors: as `wait` and `park`.
        """
        wait = self.wait(
            id,
            "approval",
            title=title,
            summary=summary,
            proposal=proposal,
            answer_schema=answer_schema,
            deadline=deadline,
            on_timeout=on_timeout,
        )
        return self._answer_of(wait, hold_pod_seconds)

    def sleep_until(self, id: str, time: datetime, *, hold_pod_seconds: float = 0) -> Answer:
        """Returns at this time, or after it; until then the run has no pod. `time` has a time zone.

        A later attempt may call it with another time: the time that was given first stays. `hold_pod_seconds` and
        errors: as `ask_approval`.
        """
        return self._answer_of(self.wait(id, "until", time=time), hold_pod_seconds)

    def wait_for_message(
        self,
        id: str,
        topic: str | None = None,
        *,
        deadline: float | timedelta | None = None,
        on_timeout: str | None = None,
        hold_pod_seconds: float = 0,
    ) -> Message | None:
        """Returns a message that no boundary has taken, of this topic or of any; `None` where the deadline passed.

        Until one comes, the run has no pod. Take it with `commit(…, inbox=[message])`. `hold_pod_seconds` and errors:
        as `ask_approval`; and `LookupError` if a boundary has taken the message: another message needs another id.
        """
        wait = self.wait(id, "message", topic=topic, deadline=deadline, on_timeout=on_timeout)
        answer = self._answer_of(wait, hold_pod_seconds)
        if answer.position is None:
            return None
        for message in _inbox.read(self._transport, answer.position - 1):
            if message.position == answer.position:
                return message
            break
        raise LookupError("a boundary has taken the message of this wait: another message needs another id")

    def wait_for_rate_limit(
        self, id: str, *, provider: str, reset_time: datetime | None = None, hold_pod_seconds: float = 0
    ) -> Answer:
        """Returns when a provider's rate limit is over; until then the run has no pod.

        Of the runs of a namespace that wait for the same provider, one goes on first, and then more and more. So call
        the provider again, and if it still refuses, wait again under another id; put `run.attempt` into it. A later
        attempt may give another time: what was given first stays. `hold_pod_seconds` and errors: as `ask_approval`.
        """
        wait = self.wait(id, "rateLimit", provider=provider, reset_time=reset_time)
        return self._answer_of(wait, hold_pod_seconds)

    @property
    def new_messages(self) -> bool:
        """Whether a message has come that `read_inbox` has not returned in this process, as of the latest answer."""
        return self.inbox > self._read_to

    def read_inbox(self) -> list[Message]:
        """The messages that no boundary has taken, in order. Take them with `commit(…, inbox=messages)`.

        A message that is not taken comes again, in later attempts too. It is its author's word: see `as_user_turn`.
        """
        known = self.inbox
        messages = list(_inbox.read(self._transport))
        self._read_to = max(known, *(message.position for message in messages), self._read_to)
        return messages

    def _answer_of(self, wait: Wait, hold_pod_seconds: float) -> Answer:
        """The answer of a wait. Without one, it waits so long for it, and then parks and exits with 0."""
        end = clock.monotonic() + hold_pod_seconds
        while wait.answer is None:
            left = end - clock.monotonic()
            if left > 0 and not (self.cancelled or self.suspending or self.at_limit or self.stopping):
                wait = self._waits.read(wait.id, left)
            elif self.park([wait.id]):
                sys.exit(0)
            else:
                wait = self._waits.read(wait.id)
        return wait.answer

    def _commit_and_leave(self, path: str, fields: Mapping[str, Any]) -> NoReturn:
        """Sends a boundary that parks, and exits with 0.

        If its answer was lost, the same bytes are fenced by the boundary's own park; the refusal says that the boundary
        is in the store.
        """
        with self._lease.parking():
            try:
                self._transport.send(path, fields)
            except Refused as refused:
                if refused.code != "FENCED":
                    raise
            self._lease.ended = True
        sys.exit(0)
