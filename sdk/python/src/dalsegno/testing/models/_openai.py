"""A fake of OpenAI's API: chat completions and responses, streamed or not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from dalsegno.testing.models._refusals import unanswered_in_chat, unanswered_in_response
from dalsegno.testing.models._server import Event, FakeModel, Reply, call_id

MODEL_ITEMS = ("function_call", "reasoning")


class FakeOpenAI(FakeModel):
    """`POST /v1/chat/completions` and `POST /v1/responses`. Set `environment` for the agent.

    As the real API does, it refuses with status 400 a conversation in which a tool call of the model has no answer.
    """

    @staticmethod
    def environment_of(url: str) -> dict[str, str]:
        """The variables that OpenAI's client reads. One of them switches the tracing of the OpenAI Agents SDK off, which
        would send prompts and arguments of tools to OpenAI, whatever the base URL is."""
        return {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "test",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any] | list[Event] | None:
        """See `FakeModel.answer`."""
        answer = {"/v1/chat/completions": self._chat, "/v1/responses": self._responses}.get(path)
        return answer(body) if answer is not None else None

    def _error(self, status: int, message: str) -> dict[str, Any]:
        kind = "rate_limit_exceeded" if status == 429 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "code": kind, "param": None}}

    def _chat(self, body: dict[str, Any]) -> dict[str, Any] | list[Event]:
        spoken = sum(message["role"] == "assistant" for message in body["messages"])
        reply = self._reply(body, spoken, unanswered_in_chat(body["messages"]))
        calls = [
            {
                "id": call_id(call, spoken, number, "call"),
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for number, call in enumerate(reply.tool_calls)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        if calls:
            message["tool_calls"] = calls
        end = "tool_calls" if calls else "stop"
        usage = {
            "prompt_tokens": reply.tokens_in,
            "completion_tokens": reply.tokens_out,
            "total_tokens": reply.tokens_in + reply.tokens_out,
        }
        head = {"id": self._next_id("chatcmpl"), "created": int(time.time()), "model": body.get("model", "test")}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": end, "logprobs": None}
            return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}

        def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return "", {**head, "object": "chat.completion.chunk", "choices": [choice]}

        events = [chunk({"role": "assistant", "content": ""})]
        events += [chunk({"content": part}) for part in _parts(reply.text)]
        events += [chunk({"tool_calls": [{"index": number, **call}]}) for number, call in enumerate(calls)]
        events.append(chunk({}, end))
        events.append(("", {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}))
        return [*events, ("", {"raw": "[DONE]"})]

    def _responses(self, body: dict[str, Any]) -> dict[str, Any] | list[Event]:
        spoken = _times_spoken(body.get("input", []))
        reply = self._reply(body, spoken, unanswered_in_response(body.get("input")))
        output = self._output(reply, spoken)
        response: dict[str, Any] = {
            "id": self._next_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "metadata": {},
            "model": body.get("model", "test"),
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": {
                "input_tokens": reply.tokens_in,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": reply.tokens_out,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": reply.tokens_in + reply.tokens_out,
            },
        }
        if not body.get("stream"):
            return response
        return [(event["type"], {**event, "sequence_number": at}) for at, event in enumerate(_events(response))]

    def _output(self, reply: Reply, spoken: int) -> list[dict[str, Any]]:
        output: list[dict[str, Any]] = []
        if reply.text or not reply.tool_calls:
            content = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
            message = {"id": self._next_id("msg"), "type": "message", "role": "assistant", "status": "completed"}
            output.append({**message, "content": content})
        for number, call in enumerate(reply.tool_calls):
            output.append(
                {
                    "id": self._next_id("fc"),
                    "type": "function_call",
                    "call_id": call_id(call, spoken, number, "call"),
                    "name": call.name,
                    "arguments": json.dumps(dict(call.arguments)),
                    "status": "completed",
                }
            )
        return output


def _times_spoken(items: Any) -> int:
    """How often the model has spoken in the input of a response: its items stand together."""
    times, before = 0, False
    for item in items if isinstance(items, list) else []:
        own = item.get("role") == "assistant" or item.get("type") in MODEL_ITEMS
        times += own and not before
        before = own
    return times


def _events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a streamed response."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(response["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        text = item["type"] == "message"
        empty = {**item, "status": "in_progress", **({"content": []} if text else {"arguments": ""})}
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        if text:
            part = item["content"][0]
            yield {"type": "response.content_part.added", **place, "content_index": 0, "part": {**part, "text": ""}}
            for piece in _parts(part["text"]):
                yield {
                    "type": "response.output_text.delta",
                    **place,
                    "content_index": 0,
                    "delta": piece,
                    "logprobs": [],
                }
            done = {"content_index": 0, "text": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **place, **done}
            yield {"type": "response.content_part.done", **place, "content_index": 0, "part": part}
        else:
            yield {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]}
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield {"type": "response.function_call_arguments.done", **place, **done}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": response}


def _parts(text: str) -> list[str]:
    """A text in pieces, as a model streams it."""
    return [text[at : at + 8] for at in range(0, len(text), 8)]
