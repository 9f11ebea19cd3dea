"""A fake of Anthropic's API: messages, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dalsegno.testing.models._server import Event, FakeModel, call_id


class FakeAnthropic(FakeModel):
    """`POST /v1/messages` and `POST /v1/messages/count_tokens`. Set `environment` for the agent."""

    @staticmethod
    def environment_of(url: str) -> dict[str, str]:
        """The variables that Anthropic's client and the Claude CLI read."""
        return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "test"}

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any] | list[Event] | None:
        """See `FakeModel.answer`."""
        if path == "/v1/messages/count_tokens":
            return {"input_tokens": 10}
        return self._messages(body) if path == "/v1/messages" else None

    def _error(self, status: int) -> dict[str, Any]:
        kind = {429: "rate_limit_error", 529: "overloaded_error"}.get(status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": f"status {status}"}}

    def _messages(self, body: dict[str, Any]) -> dict[str, Any] | list[Event]:
        spoken = sum(message["role"] == "assistant" for message in body["messages"])
        reply = self._reply(body, spoken)
        content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
        for number, call in enumerate(reply.tool_calls):
            id = call_id(call, spoken, number, "toolu")
            content.append({"type": "tool_use", "id": id, "name": call.name, "input": dict(call.arguments)})
        message: dict[str, Any] = {
            "id": self._next_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": body.get("model", "test"),
            "content": content,
            "stop_reason": "tool_use" if reply.tool_calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": reply.tokens_in, "output_tokens": reply.tokens_out},
        }
        return [(event["type"], event) for event in _events(message)] if body.get("stream") else message


def _events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a streamed message."""
    usage = message["usage"]
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty: dict[str, Any] = {"type": "text", "text": ""}
            text = block["text"]
            deltas = [{"type": "text_delta", "text": text[at : at + 8]} for at in range(0, len(text), 8)]
        else:
            empty = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}
