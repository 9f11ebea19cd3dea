"""The exceptions that an agent meets or raises."""

from __future__ import annotations

from typing import Any, ClassVar

# Each class names the package as its module: that is what a traceback shows and what a pickle stores.


class Error(Exception):
    """What every exception of this package is, apart from `Leave`."""

    __module__ = "dalsegno"


class NotConfigured(Error, LookupError):
    """A variable of the environment is missing: nothing has started this process as a worker of a run."""

    __module__ = "dalsegno"


class NotAttached(Error):
    """A tool was called in a process that has not attached to a run."""

    __module__ = "dalsegno"


class Diverged(Error):
    """The agent did not repeat what an earlier try of its open turn did.

    It is raised for a call that is stored under the same id with other arguments, another policy or another key; and
    at the end of a turn, or at its plan, if an earlier try, in this process or in another one, made a call that this
    one has not made. Whatever decides about a call belongs into a `Turn.step`, so that the next try decides the same.
    """

    __module__ = "dalsegno"


class Refused(Error):
    """The gateway refused a request for good: sending it again would change nothing.

    Its arguments are the code and a message for a person. The message names neither a call nor a record.
    """

    __module__ = "dalsegno"

    @property
    def code(self) -> str:
        """A stable code: the gateway's own, as `CONFLICT`, or `HTTP_404` where the answer was not the gateway's."""
        code: str = self.args[0]
        return code


class AlreadyCommitted(Refused):
    """The gateway refused a repeated boundary that is in the store: its own park fences it."""


class Uncertain(Error):
    """Nobody knows whether a tool call took effect: find out, then record the answer with `Run.settle`.

    The text leaves out the call's key and arguments, because it may end in a log.
    """

    __module__ = "dalsegno"

    @property
    def call(self) -> dict[str, Any]:
        """The call as the store has it: `id`, `key`, `policy`, `state`, `arguments` …"""
        call: dict[str, Any] = self.args[0]
        return call

    def __str__(self) -> str:
        return f"call {self.call['id']!r} may have taken effect: find out, then `Run.settle` it"

    __repr__ = __str__


class _ToolRefusal(Error):
    """What a tool raises when it refused; an optional argument is the result to record."""

    outcome: ClassVar[str]

    @property
    def result(self) -> Any:
        """What the tool said, as JSON; `None` where it said nothing. It is also the exception's text."""
        return self.args[0] if self.args else None


class CallFailed(_ToolRefusal):
    """Raise it in a tool that refused and changed nothing.

    `Run.call` records the failure and raises it, now and each time the same call is made again. It also raises it
    for a call that was settled as failed; the result is then what the settle gave, or `None`. To try again, use a new
    id.
    """

    __module__ = "dalsegno"
    outcome = "failed"


class KeyRefused(_ToolRefusal):
    """Raise it in a tool that refused the idempotency key itself (HTTP 422).

    `Run.call` records it and raises it. Then exit: the run is held until a person has looked. It is not a `CallFailed`,
    so that an agent which tries a failed call again under another key does not repeat the effect.
    """

    __module__ = "dalsegno"
    outcome = "keyRefused"


class Leave(SystemExit):
    """The process has to end, and the run goes on without it. Let it pass: the rest is done by `attach` and Python.

    It is a `SystemExit`, so that `except Exception` in an agent or a framework does not swallow it.
    """

    __module__ = "dalsegno"
    exit_code: ClassVar[int] = 0

    def __init__(self, message: str = "") -> None:
        super().__init__(self.exit_code)
        self.message = message
        """Why, for a person."""


class Suspended(Leave):
    """A person has suspended the run, and this process has parked it. The exit code is 0."""

    __module__ = "dalsegno"


class Parked(Leave):
    """The run waits for an answer, and this process has parked it. The exit code is 0."""

    __module__ = "dalsegno"


class Cancelled(Leave):
    """A person has cancelled the run, and this process has acknowledged it. The exit code is 0."""

    __module__ = "dalsegno"


class AtLimit(Leave):
    """The run has reached one of its limits. The exit code is 0."""

    __module__ = "dalsegno"


class Stopping(Leave):
    """SIGTERM has come. The exit code is 143."""

    __module__ = "dalsegno"
    exit_code = 143


class StoreUnavailable(Leave):
    """No request was answered for `store_timeout` seconds. The exit code is 1, and the termination message says: a
    disruption."""

    __module__ = "dalsegno"
    exit_code = 1


class Unhandled(BaseException):
    """Carries an error past the `except Exception` of a framework. The end of `run.turn()` raises `error` in its place.

    An adapter raises it where a tool with an effect has raised: the outcome is unknown, and a framework that hands the
    error to the model as the answer of the tool makes the model try again, as another call.

    It also carries a `SystemExit`. In a task of asyncio that is not the main one a `SystemExit` stops the event loop at
    once; then threads of the loop stay, and the process does not end.
    """

    __module__ = "dalsegno"

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error
        """What happened."""

    @staticmethod
    def find(error: BaseException | None) -> BaseException | None:
        """What an error, or a group of errors, carries; `None` where it carries nothing."""
        if isinstance(error, Unhandled):
            return error.error
        inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
        return next((found for it in inner if (found := Unhandled.find(it))), None)
