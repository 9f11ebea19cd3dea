"""What an agent waits for: people, times, messages and rate limits."""

from __future__ import annotations

import time as clock
from datetime import datetime, timedelta
from typing import Any

from dalsegno import _inbox
from dalsegno._attempt import Attempt
from dalsegno._codec import S
from dalsegno._errors import Parked
from dalsegno._inbox import Message
from dalsegno._waits import Answer, Approval, Wait, encode_seconds, encode_time


class Waiting(Attempt[S]):
    """The part of a run that waits, and reads its inbox."""

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
        expires: float | timedelta | None = None,
        on_timeout: str | None = None,
    ) -> Wait:
        """Opens a wait and returns it at once. With the same arguments it returns the same wait, in later attempts too;
        `time` and `reset_time` may differ, and what was given first stays.

        kind: `approval` (with `title` and `proposal`, perhaps `summary` and `answer_schema`), `until` (with `time`),
            `message` (of a `topic`, or of any), or `rateLimit` (with `provider`, perhaps `reset_time`).
        expires: seconds, or a `timedelta`, from the opening; then `on_timeout` says what happens: `Answer` (the
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
            "deadlineSeconds": encode_seconds(expires),
            "onTimeout": on_timeout,
        }
        return self._waits.open(id, {"kind": kind, **fields})

    def approval(
        self,
        id: str,
        proposal: Any,
        *,
        title: str,
        summary: str | None = None,
        answer_schema: Any = None,
        expires: float | timedelta | None = None,
        on_timeout: str | None = None,
        linger: float = 0.0,
    ) -> Approval:
        """Asks a person, and returns the answer: look at its `granted`, `timed_out`, `changes` and `reason`.

        While nobody has answered, the process parks and leaves; the next attempt calls this again with the same
        arguments, and gets the answer. So let the proposal be made from what is stored: committed, or the result of a
        `turn.step`. A model that is asked again says something else.

        proposal: what people decide on, any JSON but null, up to 1 MiB. title, summary: what they read, as the agent's
            words.
        answer_schema: a JSON schema of the changes that they may make. expires, on_timeout: see `wait`.
        linger: how many seconds to wait in this process before parking, for answers that come quickly.

        Without `approved_by` of the tool, or `call(…, approval=id)`, an approval is advice: with it, the store refuses
        the call unless it is approved. Errors: as `wait` and `park`; `Parked`, `Suspended`.
        """
        wait = self.wait(
            id,
            "approval",
            title=title,
            summary=summary,
            proposal=proposal,
            answer_schema=answer_schema,
            expires=expires,
            on_timeout=on_timeout,
        )
        answer = self._answer_of(wait, linger)
        return Approval(answer.outcome, answer.at, answer.by, answer.reason, answer.changes, answer.position, id)

    def sleep(self, id: str, until: datetime, *, linger: float = 0.0) -> Answer:
        """Returns at this time, or after it; until then the run has no pod. `until` has a time zone.

        A later attempt may call it with another time: the time that was given first stays. `linger` and errors: as
        `approval`.
        """
        return self._answer_of(self.wait(id, "until", time=until), linger)

    def message(
        self,
        topic: str | None = None,
        *,
        id: str | None = None,
        expires: float | timedelta | None = None,
        on_timeout: str | None = None,
        linger: float = 0.0,
    ) -> Message | None:
        """Returns a message that no boundary has taken, of this topic or of any; `None` where it expired.

        Until one comes, the run has no pod. Inside of `with run.turn()` the turn takes it; otherwise take it with
        `commit(…, inbox=[message])`.

        id: names the wait; by default it is made of the turn and how many messages this turn has waited for. `linger`
            and errors: as `approval`; and `LookupError` if a boundary has taken the message: another message needs
            another id.
        """
        wait_id = id or self._next_id("message")
        wait = self.wait(wait_id, "message", topic=topic, expires=expires, on_timeout=on_timeout)
        answer = self._answer_of(wait, linger)
        if answer.position is None:
            return None
        message = _inbox.find(self._transport, answer.position)
        if message is None:
            raise LookupError("a boundary has taken the message of this wait: another message needs another id")
        self._take([message])
        return message

    def rate_limit(
        self, provider: str, *, reset_time: datetime | None = None, id: str | None = None, linger: float = 0.0
    ) -> Answer:
        """Returns when a provider's rate limit is over; until then the run has no pod.

        Of the runs of a namespace that wait for the same provider, one goes on first, and then more and more. So call
        the provider again, and if it still refuses, call this again.

        id: names the wait; by default it is made of the turn, the attempt and a count, so that each limit has its own
            wait. `linger` and errors: as `approval`.
        """
        wait_id = id or f"{self._next_id('rateLimit')}.{self.attempt}"
        return self._answer_of(self.wait(wait_id, "rateLimit", provider=provider, reset_time=reset_time), linger)

    @property
    def new_messages(self) -> bool:
        """Whether a message has come that `read_inbox` has not returned in this process, as of the latest answer."""
        return self.inbox > self._read_to

    def read_inbox(self) -> list[Message]:
        """The messages that no boundary has taken, in order. Take them with `commit(…, inbox=messages)`.

        A message that is not taken comes again, in later attempts too. It is its author's word: see `as_user_turn`.
        Inside of `with run.turn()` use `turn.take_messages`, which returns the same messages after a crash.
        """
        known = self.inbox
        messages = list(_inbox.read(self._transport))
        self._read_to = max(known, *(message.position for message in messages), self._read_to)
        return messages

    def _answer_of(self, wait: Wait, linger: float) -> Answer:
        """The answer of a wait. Without one, it waits so long for it, and then parks and leaves."""
        end = clock.monotonic() + linger
        while wait.answer is None:
            left = end - clock.monotonic()
            if left > 0 and not (self.cancelled or self.suspending or self.at_limit or self.stopping):
                wait = self._waits.read(wait.id, left)
            elif self.park([wait.id]):
                raise Parked(f"the run waits for {wait.kind}")
            else:
                wait = self._waits.read(wait.id)
        return wait.answer
