"""The worker's HTTP contract as pure functions: no socket, no clock, no environment.

`encode` makes the body of a request, `classify` says what an answer means, `react` what follows from a refusal.
"""

from __future__ import annotations

import enum
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from dalsegno import _json
from dalsegno._errors import Refused

OVER = ("FENCED", "ATTEMPT_SPENT", "VERSION_INCOMPATIBLE", "CHECKPOINT_CORRUPT", "FINISHED")
"""The codes after which the gateway accepts nothing more from this process."""

MAX_BODY_BYTES = 16 << 20
MAX_BACKOFF_SECONDS = 5
ROLL_OUT_SECONDS = 1  # between two looks at the version of the contract
MAX_DETAIL_BYTES = 512  # of an answer that is not the gateway's, quoted in an error


@dataclass(frozen=True, slots=True)
class Ok:
    """The gateway has done what was asked."""

    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Again:
    """There is no usable answer: send the same bytes again. The gateway recognises a repeated request by its bytes."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request was refused. `code` is the gateway's own, or `HTTP_` and the status where something else answered."""

    status: int
    code: str
    detail: str
    committed: bool = False
    """Whether the boundary of a `FENCED` request is in the store."""


Outcome = Ok | Again | Refusal

ADDITIONS = 3
"""The version of the contract that has `records/read`, `order`, `keysOnly`, `deletePrefix`, `tool` and a call's
`usage`."""


def contract_of(path: str) -> int:
    """The version of the contract that has the call with this path."""
    if path == "records/read":
        return ADDITIONS
    return 2 if path.partition("?")[0].partition("/")[0] in ("waits", "park", "inbox") else 1


class Reaction(enum.Enum):
    """What follows from a refusal."""

    EXIT = "end the process"
    RAISE = "raise Refused"
    RETRY = "send the same bytes again"


def log_name(path: str) -> str:
    """The name of a request for logs: without the id of a call or a wait, a record's space or a record's key."""
    return re.sub("(?<=^(?:calls|waits)/)[^/]+", "*", path.split("?")[0])


def encode(name: str, fields: Mapping[str, Any] | None) -> bytes | None:
    """The body of a request as JSON, without the fields that are `None`; `None` for a request without a body.

    `name` is the request's `log_name`. Errors: `TypeError` or `ValueError` where a field is not JSON; `Refused` with
    `TOO_LARGE` for a body over `MAX_BODY_BYTES`: the gateway refuses it too, but closes the connection on a long one.
    """
    if not fields:
        return None
    members = (f"{json.dumps(key)}: {_text(value)}" for key, value in fields.items() if value is not None)
    body = f"{{{', '.join(members)}}}".encode()
    if len(body) > MAX_BODY_BYTES:
        raise Refused("TOO_LARGE", f"{name}: a body of {len(body)} bytes: keep large things elsewhere")
    return body


def _text(value: Any) -> str:
    return value.text if isinstance(value, _json.Raw) else _json.dumps(value)


def is_divergence(refusal: Refused) -> bool:
    """Whether a claim was refused because the call is stored with other arguments, another key or another policy.

    The contract has no code for this: it is `INVALID`, as is a malformed claim. So the detail decides. A code of its
    own in the contract would replace the second line of this function.
    """
    detail = str(refusal.args[1])
    return (
        refusal.code == "INVALID"
        and re.search(r": call .* has (other arguments|another key|another policy)", detail) is not None
    )


def classify(status: int, body: bytes) -> Outcome:
    """What an answer means. Success is 200 with a JSON object and nothing else; 429 and 5xx are worth another try.

    Errors: `json.JSONDecodeError` and `UnicodeDecodeError` for a 200 whose body is garbled, which is no answer either.
    """
    if status == 200:
        answer: Any = json.loads(body)
        return Ok(cast("dict[str, Any]", answer)) if isinstance(answer, dict) else Again("200")
    if status == 429 or status >= 500:
        return Again(str(status))
    with suppress(ValueError, LookupError, TypeError, AttributeError):  # the body is not the gateway's
        problem = json.loads(body)
        return Refusal(status, problem["code"], problem["detail"], problem.get("committed", False))
    return Refusal(status, f"HTTP_{status}", str(body[:MAX_DETAIL_BYTES]))


def react(name: str, refusal: Refusal, ended: bool) -> Reaction:
    """What follows from the refusal of the request `name`; `ended`: this process ends or has ended its attempt itself.

    A code of `OVER` ends the process, whatever the agent would catch. A heartbeat is the exception: its refusal is
    expected after our own finish, cancel or park, and any other refusal of it is no answer, so that heartbeats go on.
    The other exception is a repeated boundary that parked: it is in the store, and its own park fences it.
    """
    heartbeat = name == "heartbeat"
    if refusal.code in OVER:
        by_itself = ended and (heartbeat or refusal.committed)
        return Reaction.RAISE if by_itself or (heartbeat and refusal.code == "FINISHED") else Reaction.EXIT
    return Reaction.RETRY if heartbeat else Reaction.RAISE


def backoff() -> Iterator[float]:
    """The longest wait before each next try, in seconds, without end; the transport draws from its upper half."""
    return itertools.chain((0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2), itertools.repeat(MAX_BACKOFF_SECONDS))


def retry_after(header: str, limit: float) -> float:
    """The seconds of a `Retry-After` header, at most `limit`; 0 where it is missing or a date."""
    return min(limit, int(header[:9])) if header.isdecimal() else 0
