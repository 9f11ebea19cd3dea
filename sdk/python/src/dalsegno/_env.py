"""The environment of a worker: the variables that the operator, or `dalsegno dev`, sets for its process.

`DALSEGNO_URL`, `DALSEGNO_TOKEN_FILE` and `DALSEGNO_INPUT_FILE` are read when they are needed; each function raises
`NotConfigured` where its variable is not set. `DALSEGNO_CA_FILE` and `DALSEGNO_STORE_TIMEOUT_SECONDS` are optional.
`DALSEGNO_TERMINATION_LOG` is optional and read at import.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from dalsegno._errors import NotConfigured

TERMINATION_LOG = Path(os.environ.get("DALSEGNO_TERMINATION_LOG", "/dev/termination-log"))
"""The file for the termination message. Where it does not exist, no message is written."""


def _required(name: str) -> str:
    """The value of a variable. Raises `NotConfigured` if it is not set, because nothing has started this worker."""
    if name not in os.environ:
        raise NotConfigured(
            f"{name} is not set: start the agent with `dalsegno dev -- python3 agent.py`, or as the worker of an "
            "AgentRun"
        )
    return os.environ[name]


def gateway_url() -> SplitResult:
    """The run's own base URL at the gateway; the last segment of its path is the run's id."""
    return urlsplit(_required("DALSEGNO_URL"))


def ca_file() -> Path | None:
    """The file with the CAs of the gateway's certificate, in PEM; `None` where the gateway has none of its own."""
    name = os.environ.get("DALSEGNO_CA_FILE")
    return Path(name) if name else None


def store_timeout() -> float | None:
    """The seconds without an answer after which the process leaves; `None` where it shall wait for ever.

    Errors: `ValueError` where the variable is not a whole number above 0.
    """
    text = os.environ.get("DALSEGNO_STORE_TIMEOUT_SECONDS")
    if not text:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise ValueError("DALSEGNO_STORE_TIMEOUT_SECONDS must be a whole number of seconds above 0")
    return int(text)


def read_token() -> str:
    """The pod's token, which only attach needs. It is rotated, so it is read for each request.

    Errors: `OSError` and `UnicodeDecodeError` from reading the file.
    """
    return Path(_required("DALSEGNO_TOKEN_FILE")).read_text("ascii").strip()


def read_input() -> Any:
    """The run's input, decoded from JSON; `None` where the file is empty.

    Errors: `OSError`, and `ValueError` where the input is not JSON.
    """
    text = Path(_required("DALSEGNO_INPUT_FILE")).read_bytes().strip()
    return json.loads(text or b"null")  # not JSON? Then read the file of DALSEGNO_INPUT_FILE yourself
