"""JSON, and the payloads in which the worker's contract wraps the values of channels and records.

A payload is `{"json": value}` or `{"bytes": {"mediaType", "base64"}}`.

Python writes `NaN` and `Infinity`, which JSON does not have. The gateway accepts them in a state and in values of
channels and records, and returns such a value as bytes of the media type `application/json5`.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Raw:
    """A value that is JSON text already. It may be a field of a request."""

    text: str


def dumps(value: Any) -> str:
    """A value as JSON. Dataclasses and pydantic models become objects, and enums their values, wherever they are.

    Errors: `TypeError` or `ValueError` where the value cannot be written as JSON.
    """
    return json.dumps(value, default=_plain)


def canonical(value: Any) -> str:
    """A value as JSON that is the same text for every order of members. Errors: as `dumps`."""
    return json.dumps(value, default=_plain, sort_keys=True, separators=(",", ":"))


def copy(value: Any) -> Any:
    """A deep copy of what would be sent. Errors: as `dumps`."""
    return json.loads(dumps(value))


def _plain(value: Any) -> Any:
    """An object that is not JSON, as one level of JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    dump: Any = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    raise TypeError(f"a value of the type {type(value).__name__} cannot be written as JSON")


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
