"""What an asynchronous agent looks at: the values of the run below."""

from __future__ import annotations

from typing import Any, Generic

from dalsegno._attempt import Head
from dalsegno._codec import S
from dalsegno._run import Run
from dalsegno._waits import Wait


class View(Generic[S]):
    """The values of `Run`, which need no request."""

    sync: Run[S]
    """The run below. Its methods block: call them in threads of your own, as a framework's store does."""

    @property
    def state(self) -> S:
        """See `Run.state`."""
        return self.sync.state

    @state.setter
    def state(self, state: S) -> None:
        self.sync.state = state

    @property
    def name(self) -> str:
        """See `Run.name`."""
        return self.sync.name

    @property
    def attempt(self) -> int:
        """See `Run.attempt`."""
        return self.sync.attempt

    @property
    def decision(self) -> str:
        """See `Run.decision`."""
        return self.sync.decision

    @property
    def branch(self) -> int:
        """See `Run.branch`."""
        return self.sync.branch

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """See `Run.warnings`."""
        return self.sync.warnings

    @property
    def head(self) -> Head | None:
        """See `Run.head`."""
        return self.sync.head

    @property
    def planned(self) -> bool:
        """See `Run.planned`."""
        return self.sync.planned

    @property
    def next_turn(self) -> int:
        """See `Run.next_turn`."""
        return self.sync.next_turn

    @property
    def channels(self) -> dict[str, Any]:
        """See `Run.channels`."""
        return self.sync.channels

    @property
    def unsettled_calls(self) -> list[dict[str, Any]]:
        """See `Run.unsettled_calls`."""
        return self.sync.unsettled_calls

    @property
    def completed_calls(self) -> list[dict[str, Any]]:
        """See `Run.completed_calls`."""
        return self.sync.completed_calls

    @property
    def waits(self) -> dict[str, Wait]:
        """See `Run.waits`."""
        return self.sync.waits

    @property
    def input(self) -> Any:
        """See `Run.input`."""
        return self.sync.input

    @property
    def cancelled(self) -> bool:
        """See `Run.cancelled`."""
        return self.sync.cancelled

    @property
    def suspending(self) -> bool:
        """See `Run.suspending`."""
        return self.sync.suspending

    @property
    def at_limit(self) -> bool:
        """See `Run.at_limit`."""
        return self.sync.at_limit

    @property
    def stopping(self) -> bool:
        """See `Run.stopping`."""
        return self.sync.stopping

    @property
    def inbox(self) -> int:
        """See `Run.inbox`."""
        return self.sync.inbox

    @property
    def new_messages(self) -> bool:
        """See `Run.new_messages`."""
        return self.sync.new_messages
