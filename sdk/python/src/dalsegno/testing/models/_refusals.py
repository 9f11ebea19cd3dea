"""What the real APIs refuse with status 400: a conversation in which a tool call of the model has no answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Item = Mapping[str, Any]


def unanswered_in_chat(messages: Sequence[Item]) -> str | None:
    """Why chat completions refuse these messages: each call needs a tool message right after the assistant's."""
    for at, message in enumerate(messages):
        following = itertools.takewhile(lambda it: it.get("role") == "tool", messages[at + 1 :])
        answered = {it.get("tool_call_id") for it in following}
        missing = [call["id"] for call in message.get("tool_calls") or () if call["id"] not in answered]
        if missing:
            return _refusal(f"messages[{at}]", missing, "a message with the role `tool` and its `tool_call_id` right after it")
    return None


def unanswered_in_response(items: Any) -> str | None:
    """Why a response to this input is refused: each call needs an output, anywhere in the input."""
    items = items if isinstance(items, list) else []
    answered = {it.get("call_id") for it in items if it.get("type") == "function_call_output"}
    calls = [it["call_id"] for it in items if it.get("type") == "function_call"]
    missing = [id for id in calls if id not in answered]
    return _refusal("input", missing, "a `function_call_output` with its `call_id`") if missing else None


def unanswered_in_messages(messages: Sequence[Item]) -> str | None:
    """Why these messages are refused: what the user says next must hold the result of each call. Messages of one role
    that follow each other are one."""
    at, asked = 0, list[str]()
    for by_model, group in itertools.groupby(messages, lambda it: it["role"] == "assistant"):
        parts = list(group)
        blocks = [block for it in parts for block in _blocks(it)]
        results = [] if by_model else [it["tool_use_id"] for it in blocks if it["type"] == "tool_result"]
        missing = [id for id in asked if id not in results]
        if missing:
            return _refusal(f"messages.{at - 1}", missing, "a `tool_result` in the next message")
        asked = [it["id"] for it in blocks if by_model and it["type"] == "tool_use"]
        at += len(parts)
    return _refusal(f"messages.{at - 1}", asked, "a `tool_result` in the next message") if asked else None


def _blocks(message: Item) -> Iterable[Item]:
    content = message["content"]
    return () if isinstance(content, str) else content


def _refusal(place: str, ids: Sequence[str], lacking: str) -> str:
    return f"{place}: tool calls without an answer: {', '.join(ids)}. Each needs {lacking}. The real API refuses this too."
