"""A turn: it is checked on entry, and committed on a good exit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from dalsegno import _codec, _json, _records, _usage
from dalsegno._calls import Begun
from dalsegno._codec import S
from dalsegno._errors import Unhandled
from dalsegno._inbox import Message
from dalsegno._ordinals import Slot
from dalsegno._records import Operation
from dalsegno._wire import MAX_BODY_BYTES

if TYPE_CHECKING:
    from dalsegno._run import Run

P = ParamSpec("P")
R = TypeVar("R")

MAX_IN_BOUNDARY = 1_000
"""Events, records and messages that one boundary may have of each."""

FRAME_BYTES = 64 << 10
"""Room in a boundary's body for what is neither state, nor event, nor record."""


@dataclass(slots=True)
class Draft:
    """What the next boundary holds beside the state."""

    events: list[Any] = field(default_factory=list[Any])
    usage: dict[str, int] = field(default_factory=dict[str, int])
    records: list[Operation] = field(default_factory=list[Operation])
    inbox: list[int] = field(default_factory=list[int])
    finish: dict[str, Any] | None = None
    size: int | None = None
    """The bytes of the events and the records; `None` until `fits` has counted them."""

    def fits(self, text: str) -> bool:
        """Whether one boundary can have this, and the state with this JSON text. Nothing is added to it after that."""
        self.size = self._bytes()
        longest = max(len(self.events), len(self.records), len(self.inbox))
        return longest <= MAX_IN_BOUNDARY and self.size + len(text) + FRAME_BYTES <= MAX_BODY_BYTES

    def _bytes(self) -> int:
        if self.size is not None:
            return self.size
        return len(_json.dumps(self.events)) + len(_json.dumps(_records.encode(self.records)))

    def merged(self, later: Draft) -> Draft:
        """Both, in order. Of what was counted before, only the later one is counted."""
        return Draft(
            self.events + later.events,
            _usage.add(self.usage, later.usage),
            self.records + later.records,
            self.inbox + [it for it in later.inbox if it not in self.inbox],
            later.finish or self.finish,
            None if self.size is None else self.size + later._bytes(),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was claimed. At the end of `with step` it is over, or its id is free for the same step again."""

    begun: Begun
    slot: Slot

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.slot.done()
        else:
            self.slot.reopen()


class Turn(Generic[S]):
    """An open turn of the run, `with run.turn() as turn`.

    On entry it leaves the process if a person asks for it (`Run.check`). On a good exit it commits `run.state` and all
    that was given to the turn. After an exception nothing is committed, and `run.state` is what the last good turn
    left.

    A turn that a crash has interrupted is replayed from its start. Its steps and its calls are answered from the store.
    So let everything that differs from one time to the next (a model, a clock, a random number) be a `step` or a tool.
    """

    number: int
    """The number of the turn, from 1."""

    def __init__(self, run: Run[S]) -> None:
        self._run = run
        self._draft = Draft()
        self._counted_around = _usage.current()
        """The usage of the tool that opens this turn, if one does. What the turn spends is its own."""

    @property
    def planned(self) -> bool:
        """Whether the plan of this turn is committed: by `plan`, now or in an earlier attempt."""
        return self._run.planned

    def __enter__(self) -> Turn[S]:
        self._run._open(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        text: str | None = None
        try:
            text = None if kind is not None else _json.dumps(self._run.state)
        finally:
            self._run._close(self, self._draft, text)
        if carried := Unhandled.find(error):
            raise carried

    def step(self, name: str, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Returns `fn(…)`, which is called once: its result is stored, and a later attempt of the turn gets it back.

        Use it for what costs or differs: a model's answer, a search, the time. It is a call with the policy `readOnly`,
        so `fn` changes nothing: a crash while it runs lets it run again.

        name: of `A-Z a-z 0-9 . _ : -`. The same name may be used several times in a turn; then the order decides.

        The result is JSON. If `fn` is annotated with a dataclass or a pydantic model as its result, that is returned,
        and otherwise the result as JSON gives it back: a tuple becomes a list.

        Errors: whatever `fn` raises; `Refused` with `TOO_LARGE` for a result above 16 MiB; `TypeError` or `ValueError`
        where it is not JSON.
        """
        step = self._run._begin_step(name)
        with step:
            result = step.begun.result
            if step.begun.must_run:
                with step.begun.running():
                    result = fn(*args, **kwargs)
                result = self._run._end_step(step, result)
        decoded: R = _codec.decode(_codec.return_type(fn), result)
        return decoded

    def plan(self) -> None:
        """Commits the plan of this turn: `run.state` as it is, and the events, usage, records and messages so far.

        After a crash the turn begins with this state and with `planned`, so skip then what came before. What is done
        behind the plan has other ids than the same before it. Calls of your own ids are not checked then: a call before
        the plan and one behind it look the same. A turn without a plan is replayed from its start, which is enough for
        most agents.

        Errors: `Refused`; `Diverged` if an earlier try of the turn made a call before the plan that this one did not.
        With `attach(every=…)` above 1 that leaves out the calls of your own ids.
        """
        self._plan(_json.dumps(self._run.state))

    def _plan(self, text: str) -> None:
        draft, self._draft = self._draft, Draft()
        try:
            self._run._commit_plan(draft, text)
        except BaseException:
            self._draft = draft.merged(self._draft)
            raise

    def event(self, value: Any) -> None:
        """Stores an event with the turn, for people to read: any JSON, at most 1,000 in a boundary."""
        self._draft.events.append(_json.copy(value))

    def spent(self, *, tokens_in: int = 0, tokens_out: int = 0, tool_calls: int = 0, cost_micro_usd: int = 0) -> None:
        """Adds to what this turn spent, which counts with its commit. `cost_micro_usd`: millionths of a US dollar.

        In a step or a tool `dalsegno.spent` counts at once.
        """
        _usage.add_to(self._draft.usage, _usage.of(tokens_in, tokens_out, tool_calls, cost_micro_usd))

    def take_messages(self) -> list[Message]:
        """The messages that no boundary has taken, in order. This turn takes them: with its commit, or not at all.

        After a crash the turn gets the same messages, and those that came later remain for the next turn. Each is its
        author's word: see `as_user_turn`.
        """
        taken = {*self._draft.inbox, *self._run._pending.inbox}
        messages = [it for it in self._run.read_inbox() if it.position not in taken]
        step = self._run._begin_step("messages")
        with step:
            if step.begun.must_run:
                self._run._end_step(step, positions(messages))
            else:
                messages = [message for message in messages if message.position in step.begun.result]
        self._take(messages)
        return messages

    def record(self, *operations: Operation) -> None:
        """Writes records with the turn: all of them with its commit, or none."""
        self._draft.records += [Operation(it.kind, _json.copy(dict(it.fields))) for it in operations]

    def finish(
        self, outcome: str = "succeeded", *, reason: str | None = None, message: str | None = None, output: Any = None
    ) -> None:
        """Ends the run with the commit of this turn. The arguments are those of `Run.finish`."""
        self._draft.finish = finish_fields(outcome, reason, message, output)

    def _take(self, messages: Iterable[Message]) -> None:
        self._draft.inbox += [message.position for message in messages if message.position not in self._draft.inbox]


def finish_fields(outcome: str, reason: str | None, message: str | None, output: Any) -> dict[str, Any]:
    """A finish, as the contract has it."""
    fields = {"outcome": outcome, "reason": reason, "message": message, "output": _json.copy(output)}
    return {name: value for name, value in fields.items() if value is not None}


def positions(messages: Iterable[Message]) -> list[int]:
    """The positions of messages."""
    return [message.position for message in messages]
