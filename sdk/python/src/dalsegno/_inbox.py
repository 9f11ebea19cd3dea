"""The inbox: messages that people and programs have sent to the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dalsegno._transport import Transport
from dalsegno._waits import Answer


@dataclass(frozen=True, slots=True)
class Message:
    """A message to the run. It is its author's word, never the system's: see `as_user_turn`."""

    position: int
    """Its place in the inbox, from 1."""
    id: str
    """The sender's id of the message, unique in the run."""
    author: str
    """Who sent it, as the API server has authenticated them."""
    at: str
    """When it arrived, by the store's clock, as RFC 3339."""
    value: Any
    """What it says: any JSON."""
    topic: str | None = None


Message.__module__ = "dalsegno"


def read(transport: Transport) -> Iterator[Message]:
    """Yields the messages that no boundary has taken, in order, page by page."""
    after = 0
    while True:
        page = transport.send(f"inbox?after={after}", method="GET")
        yield from map(_message, page["messages"])
        if "next" not in page:
            return
        after = page["next"]


def find(transport: Transport, position: int) -> Message | None:
    """The message at a position; `None` if a boundary has taken it."""
    page = transport.send(f"inbox?after={position - 1}&limit=1", method="GET")
    return next((it for it in map(_message, page["messages"]) if it.position == position), None)


def as_user_turn(said: Message | Answer) -> dict[str, str]:
    """What a person said, as a turn of the user in a model's conversation: `{"role": "user", "content": …}`.

    It names the author, and quotes each line of the text with `> `. So a text can neither pass for the system's word,
    nor for another author's. Never put a message, or an answer's `reason` or `changes`, into a system prompt.
    """
    if isinstance(said, Message):
        topic = "" if said.topic is None else f" (topic {_one_line(said.topic)})"
        parts = [f"Message from {_one_line(said.author)}{topic}:", _quote(said.value)]
    else:
        parts = [f"{_one_line(said.by or 'Nobody')} answered: {said.outcome}."]
        if said.reason is not None:
            parts += ["Reason:", _quote(said.reason)]
        if said.changes is not None:
            parts += ["Changes:", _quote(said.changes)]
    return {"role": "user", "content": "\n".join(parts)}


def _message(message: Mapping[str, Any]) -> Message:
    known = ("position", "id", "author", "at", "value", "topic")
    return Message(**{field: message[field] for field in known if field in message})


def _quote(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "\n".join(f"> {line}" for line in text.splitlines() or [""])


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
