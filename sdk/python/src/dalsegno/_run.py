"""What an agent calls: turns, tool calls and records, besides what it waits for."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from dalsegno import _records
from dalsegno._attempt import park_fields
from dalsegno._calls import Tool
from dalsegno._errors import AlreadyCommitted
from dalsegno._inbox import Message
from dalsegno._json import encode_channels
from dalsegno._records import Operations
from dalsegno._waiting import Waiting


class Run(Waiting):
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

    def _commit_and_leave(self, path: str, fields: Mapping[str, Any]) -> NoReturn:
        """Sends a boundary that parks, and exits with 0.

        If its answer was lost, the same bytes are fenced by the boundary's own park; the refusal says that the boundary
        is in the store.
        """
        with self._lease.parking():
            with suppress(AlreadyCommitted):
                self._transport.send(path, fields)
            self._lease.ended = True
        sys.exit(0)
