"""What an agent waits for: people, times, messages and rate limits."""

from __future__ import annotations

import sys
import time as clock
from datetime import datetime, timedelta
from typing import Any

from dalsegno import _inbox
from dalsegno._attempt import Attempt
from dalsegno._inbox import Message
from dalsegno._waits import Answer, Wait, encode_seconds, encode_time


class Waiting(Attempt):
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
        message = _inbox.find(self._transport, answer.position)
        if message is None:
            raise LookupError("a boundary has taken the message of this wait: another message needs another id")
        return message

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
