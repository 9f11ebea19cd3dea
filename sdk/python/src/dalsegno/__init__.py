"""Dal Segno for Python: an agent's run that outlives its process.

`attach` gives the run, `tool` makes a function a tool. It needs the standard library only; README.md shows the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from dalsegno._attempt import Head
from dalsegno._codec import S
from dalsegno._env import TERMINATION_LOG
from dalsegno._errors import (
    AtLimit,
    CallFailed,
    Cancelled,
    Diverged,
    Error,
    KeyRefused,
    Leave,
    NotAttached,
    NotConfigured,
    Parked,
    Refused,
    Stopping,
    StoreUnavailable,
    Suspended,
    Uncertain,
    Unhandled,
)
from dalsegno._inbox import Message, as_user_turn
from dalsegno._leave import GRACE_SECONDS
from dalsegno._records import Item, Operation
from dalsegno._run import Run
from dalsegno._space import Space
from dalsegno._tools import Policy, Tool, tool
from dalsegno._turn import Turn
from dalsegno._usage import spent
from dalsegno._waits import Answer, Approval, Wait
from dalsegno._wire import OVER

__all__ = [
    "GRACE_SECONDS",
    "OVER",
    "TERMINATION_LOG",
    "Answer",
    "Approval",
    "AtLimit",
    "CallFailed",
    "Cancelled",
    "Diverged",
    "Error",
    "Head",
    "Item",
    "KeyRefused",
    "Leave",
    "Message",
    "NotAttached",
    "NotConfigured",
    "Operation",
    "Parked",
    "Policy",
    "Refused",
    "Run",
    "Space",
    "Stopping",
    "StoreUnavailable",
    "Suspended",
    "Tool",
    "Turn",
    "Uncertain",
    "Unhandled",
    "Wait",
    "as_user_turn",
    "attach",
    "spent",
    "tool",
]


@overload
def attach(
    *,
    heartbeat: bool = True,
    sigterm: bool = True,
    every: int = 1,
    store_timeout: float | None = None,
    on_resume: Callable[[Run[dict[str, Any]], dict[str, Answer]], object] | None = None,
) -> Run[dict[str, Any]]: ...
@overload
def attach(
    state: type[S],
    *,
    heartbeat: bool = True,
    sigterm: bool = True,
    every: int = 1,
    store_timeout: float | None = None,
    on_resume: Callable[[Run[S], dict[str, Answer]], object] | None = None,
) -> Run[S]: ...
def attach(
    state: type[Any] = dict,
    *,
    heartbeat: bool = True,
    sigterm: bool = True,
    every: int = 1,
    store_timeout: float | None = None,
    on_resume: Callable[[Run[Any], dict[str, Answer]], object] | None = None,
) -> Run[Any]:
    """Attaches this process to its run, and returns the run as its last committed turn left it.

    It waits until the gateway lets this pod in. Then it adopts the calls of earlier attempts (`Run.adopt`). The run is
    a context manager: leave it by `run.finish`, or by a wait or a suspend that parks; otherwise it raises `Error`.

    state: the type of `run.state`: `dict`, `list`, a TypedDict, a dataclass or a pydantic model. A fresh run begins
        with `state()`, so every field has a default.
    heartbeat: starts a thread that tells the gateway that the process lives. Without it a process that hangs is found
        late.
    sigterm: installs a handler for SIGTERM, see `Run.stopping`. It needs the main thread.
    every: how many turns are committed together. A crash then repeats up to so many turns: their steps and tools are
        answered from the store, and everything else is done again. Above 1, `Diverged` does not guard everything. If
        a wait or a park commits in the middle of a turn, a later attempt does not know that the calls before it have to
        be made again. And where calls have ids of your own, no attempt may use a smaller number than the one before: it
        would end with `Diverged`, because their turns have not come yet.
    store_timeout: after how many seconds without an answer the process leaves (`StoreUnavailable`), uncharged. By
        default `DALSEGNO_STORE_TIMEOUT_SECONDS` says it, and without that the process waits for ever.
    on_resume: `on_resume(run, answers)` is called before this returns if the run goes on from a checkpoint or from
        waits, with the answers since the head by the ids of their waits: let the agent judge by its policy again.

    Errors: `NotConfigured` where nothing has started this process as a worker; `Refused` if the gateway refuses for
    good; `TypeError` or `ValueError` where the committed state is not of the type; whatever `on_resume` raises.
    """
    run: Run[Any] = Run(state, sigterm=sigterm, store_timeout=store_timeout)
    run._begin(heartbeat, every)
    run._judge_again(on_resume)
    return run
