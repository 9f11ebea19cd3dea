"""JSON, and the payloads in which the worker's contract wraps the values of channels and records.

A payload is `{"json": value}` or `{"bytes": {"mediaType", "base64"}}`.

Python writes `NaN` and `Infinity`, which JSON does not have. The gateway accepts them in a state and in values of
channels and records, and returns such a value as bytes of the media type `application/json5`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any


def copy(value: Any) -> Any:
    """A deep copy of what would be sent. Errors: `TypeError` or `ValueError` where the value cannot be sent as JSON."""
    return json.loads(json.dumps(value))


def encode_payload(value: Any) -> dict[str, Any]:
    """A value as a payload."""
    return {"json": value}


def decode_payload(payload: Mapping[str, Any]) -> Any:
    """The value of a payload. Bytes of any other media type stay as they are: `{"mediaType", "base64"}`."""
    kind, content = next(iter(payload.items()))
    if kind == "bytes" and content["mediaType"] == "application/json5":
        return json.loads(base64.b64decode(content["base64"]))
    return content


def encode_channels(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of channels, as `Run.commit` takes them, with each value as a payload."""
    return {
        **changes,
        "set": {name: encode_payload(value) for name, value in changes.get("set", {}).items()},
        "append": {name: [encode_payload(item) for item in items] for name, items in changes.get("append", {}).items()},
    }


def decode_channel(channel: Mapping[str, Any]) -> Any:
    """A channel is `{"value": payload}` or `{"list": [payload]}`: returns its value, or its items."""
    if "list" in channel:
        return [decode_payload(payload) for payload in channel["list"]]
    return decode_payload(channel["value"])
