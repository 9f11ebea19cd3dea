"""A fake of Anthropic's API: messages, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dalsegno.testing.models._refusals import unanswered_in_messages
from dalsegno.testing.models._server import Event, FakeModel, Reply, Script, call_id

TITLE = Reply('{"title": "Test"}')


class FakeAnthropic(FakeModel):
    """`POST /v1/messages` and `POST /v1/messages/count_tokens`. Set `environment` for the agent.

    As the real API does, it refuses with status 400 a conversation in which a tool call of the model has no answer.

    The Claude CLI also asks for a title of its session. The script does not see this request, and `requests` does not
    have it.
    """

    def __init__(self, script: Script, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """script: see `Script`. host: `0.0.0.0` serves other machines and pods too. port: 0 is a free one."""
        self.title_requests: list[dict[str, Any]] = []
        """The bodies of the CLI's requests for a title of its session."""
        super().__init__(script, host=host, port=port)

    @staticmethod
    def environment_of(url: str) -> dict[str, str]:
        """The variables that Anthropic's client and the Claude CLI read."""
        return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "test"}

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any] | list[Event] | None:
        """See `FakeModel.answer`."""
        if path == "/v1/messages/count_tokens":
            return {"input_tokens": 10}
        return self._messages(body) if path == "/v1/messages" else None

    def _error(self, status: int, message: str) -> dict[str, Any]:
        kind = {429: "rate_limit_error", 529: "overloaded_error"}.get(status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def _messages(self, body: dict[str, Any]) -> dict[str, Any] | list[Event]:
        spoken = sum(message["role"] == "assistant" for message in body["messages"])
        if asks_for_a_title(body):
            self.title_requests.append(body)
            reply = TITLE
        else:
            reply = self._reply(body, spoken, unanswered_in_messages(body["messages"]))
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


def asks_for_a_title(body: dict[str, Any]) -> bool:
    """Whether the CLI asks for a title: for JSON with a `title` alone, of a text between `<session>` and `</session>`."""
    schema = body.get("output_config", {}).get("format", {}).get("schema", {})
    first = body["messages"][0]["content"]
    text = first if isinstance(first, str) else first[0].get("text", "")
    return [*schema.get("properties", {})] == ["title"] and text.startswith("<session>") and not body.get("tools")


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
