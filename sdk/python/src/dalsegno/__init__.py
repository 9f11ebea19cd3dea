"""Dal Segno for Python: an agent's run that outlives its process.

`Run` is the whole interface. It needs the standard library only; README.md shows its loop.
"""

from dalsegno._env import TERMINATION_LOG
from dalsegno._errors import CallFailed, KeyRefused, Refused, Uncertain
from dalsegno._inbox import Message, as_user_turn
from dalsegno._leave import GRACE_SECONDS
from dalsegno._run import Run
from dalsegno._waits import Answer, Wait
from dalsegno._wire import OVER

__all__ = [
    "GRACE_SECONDS",
    "OVER",
    "TERMINATION_LOG",
    "Answer",
    "CallFailed",
    "KeyRefused",
    "Message",
    "Refused",
    "Run",
    "Uncertain",
    "Wait",
    "as_user_turn",
]
