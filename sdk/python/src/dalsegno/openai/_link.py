"""What the parts of this package know of one run besides the run itself."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ParamSpec, TypeGuard, TypeVar

from agents import Agent

from dalsegno._errors import Error
from dalsegno._records import Operation
from dalsegno.aio import AsyncRun

if TYPE_CHECKING:
    from agents import ModelProvider

    from dalsegno._run import Run
    from dalsegno.openai._session import SessionLog

P = ParamSpec("P")
R = TypeVar("R")

MAX_ID_CHARACTERS = 64
"""Of a vendor's id in an id of ours. A call's id has at most 128 characters, and other parts need their place."""

scope: ContextVar[str] = ContextVar("dalsegno_openai_scope", default="")
"""Where a nested agent runs: the ids of the tool calls around it. Empty for the agent of `run_agent`."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A person's approval of one tool call."""

    approval: str
    """The id of the approval."""
    changes: dict[str, Any]
    """Arguments to use instead of the model's, by name; empty where the proposal was approved as it is."""


@dataclass(slots=True, eq=False)
class Link:
    """The state of this process about one run."""

    error: BaseException | None = None
    """Why the open turn must not be committed. A framework may turn an exception into words for the model, or wrap it:
    so the first one is kept here, and `run_agent` raises it."""
    granted: dict[str, Granted] = field(default_factory=dict[str, Granted])
    """Approvals by the vendor's id of the tool call."""
    records: list[Operation] | None = None
    """What sessions write while `run_agent` has a turn open: it is committed with the turn."""
    sessions: dict[str, SessionLog] = field(default_factory=dict[str, "SessionLog"])
    """The logs of conversations by session id, so that two sessions of one id see the same items."""
    takes: dict[int, bool] = field(default_factory=dict[int, bool])
    """Whether the open turn, by its number, has looked at the inbox before its model was asked."""
    provider: ModelProvider | None = None
    """Where `run_agent` finds models by name."""

    def stop(self, error: BaseException) -> None:
        """Lets the open turn fail with this error, unless another one came before."""
        if self.error is None:
            self.error = error

    async def send(self, run: AsyncRun[Any], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function in the thread of the requests, for code that the framework calls.

        Errors: what the function raises; `Stopped` where the process has to leave, because a `SystemExit` in one of the
        framework's tasks would end the event loop before `run_agent` has returned.
        """
        try:
            return await run._portal.call(function, *args, **kwargs)
        except SystemExit as error:
            self.stop(error)
            raise Stopped("the process leaves") from error
        except Error as error:
            self.stop(error)
            raise

    def check(self) -> None:
        """Raises what was given to `stop`, so that no more work begins in a turn that fails."""
        if self.error is not None:
            raise Stopped("the turn has failed: see the error that run_agent raises") from self.error


class Stopped(Exception):
    """Leaves the framework's own loops. `run_agent` raises the error behind it instead."""


_links: weakref.WeakKeyDictionary[Run[Any], Link] = weakref.WeakKeyDictionary()


def link_of(run: AsyncRun[Any]) -> Link:
    """The link of a run; the first call makes it."""
    return _links.setdefault(run.sync, Link())


def name_part(text: str, limit: int = MAX_ID_CHARACTERS) -> str:
    """A text as a part of an id: itself, if its characters fit; otherwise what fits of it and a hash of it all."""
    if re.fullmatch(r"[A-Za-z0-9_:-]+", text) and len(text) <= limit:
        return text
    plain = re.sub(r"[^A-Za-z0-9_:-]+", "-", text)[: limit - 13]
    return f"{plain}-{digest(text)}"


def digest(text: str) -> str:
    """Twelve hexadecimal digits that stand for a text."""
    return sha256(text.encode()).hexdigest()[:12]


def is_agent(value: object) -> TypeGuard[Agent[Any]]:
    """Whether it is an agent, of any context. The vendor's references to agents do not say of which."""
    return isinstance(value, Agent)
