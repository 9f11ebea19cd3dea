"""The run of this process. A tool finds it here, in whatever thread it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dalsegno._errors import NotAttached

if TYPE_CHECKING:
    from dalsegno._run import Run

_runs: list[Run[Any]] = []


def enter(run: Run[Any]) -> None:
    """Makes it the run of this process."""
    _runs.append(run)


def leave(run: Run[Any]) -> None:
    """This process has left the run. Before, it may have attached to another one."""
    if run in _runs:
        _runs.remove(run)


def current() -> Run[Any]:
    """The run that this process attached to last. Errors: `NotAttached`, also if this process has ended its attempt."""
    if not _runs or _runs[-1]._lease.ended:
        raise NotAttached("a tool is called inside of `with dalsegno.attach() as run`")
    return _runs[-1]
