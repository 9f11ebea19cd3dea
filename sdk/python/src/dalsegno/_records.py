"""Records: entries under keys, beside the state."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from dalsegno._json import decode_payload, encode_payload
from dalsegno._transport import Transport

Operations = Iterable[Mapping[str, Mapping[str, Any]]]


def write(transport: Transport, operations: Operations) -> None:
    """Sends one batch: all of its operations or none. Its id makes a repeated batch a duplicate."""
    transport.send("records", {"batchId": str(uuid.uuid4()), "operations": encode(operations)})


def read(transport: Transport, space: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Yields the entries under keys with this prefix. A page is requested when the caller gets there."""
    query = f"records?space={quote(space)}&prefix={quote(prefix)}"
    after = ""
    while True:
        page = transport.send(query + (f"&after={quote(after)}" if after else ""), method="GET")
        yield from ({**record, "value": decode_payload(record["value"])} for record in page["records"])
        if "next" not in page:
            return
        after = page["next"]


def encode(operations: Operations) -> list[dict[str, dict[str, Any]]]:
    """Operations with each value as a payload."""
    return [
        {kind: {**fields, "value": encode_payload(fields["value"])} if "value" in fields else {**fields}}
        for operation in operations
        for kind, fields in operation.items()
    ]
