"""The fake model servers: replies by the place in the conversation, failures, and streams."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import dalsegno
from dalsegno.testing.models import FakeAnthropic, FakeOpenAI, Reply, ToolCall

SCRIPT = [Reply("Let me pay", tool_calls=[ToolCall("pay", {"cents": 5})]), Reply("Paid.")]


def ask(url: str, body: dict[str, Any]) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as response:
        text = response.read().decode()
    return (
        json.loads(text)
        if not body.get("stream")
        else [json.loads(it[6:]) for it in text.splitlines() if it.startswith("data: {")]
    )


def test_chat_completions_reply_by_the_place_in_the_conversation() -> None:
    with FakeOpenAI(SCRIPT) as model:
        url = f"{model.environment['OPENAI_BASE_URL']}/chat/completions"
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        for _ in range(2):
            [choice] = ask(url, asked)["choices"]
            assert choice["finish_reason"] == "tool_calls" and choice["message"]["tool_calls"][0]["id"] == "call_0_0"
        asked["messages"] += [choice["message"], {"role": "tool", "tool_call_id": "call_0_0", "content": "7"}]
        assert ask(url, asked)["choices"][0]["message"]["content"] == "Paid."
        chunks = ask(url, {**asked, "stream": True})
        assert "".join(it["choices"][0]["delta"].get("content") or "" for it in chunks if it["choices"]) == "Paid."
        assert len(model.requests) == 4
        asked["messages"] += [{"role": "assistant", "content": "x"}]
        with pytest.raises(urllib.error.HTTPError, match="400"):
            ask(url, asked)


def test_responses_count_the_items_of_the_model_that_stand_together_as_one() -> None:
    with FakeOpenAI(SCRIPT) as model:
        url = f"{model.url}/v1/responses"
        first = ask(url, {"input": "hi"})
        assert [item["type"] for item in first["output"]] == ["message", "function_call"]
        output = {"type": "function_call_output", "call_id": "call_0_0", "output": "7"}
        items = [{"role": "user", "content": "hi"}, *first["output"], output]
        events = ask(url, {"input": items, "stream": True})
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Paid."
        assert [event["sequence_number"] for event in events] == [*range(len(events))]


def test_messages_and_their_streams() -> None:
    with FakeAnthropic(SCRIPT) as model:
        url = f"{model.environment['ANTHROPIC_BASE_URL']}/v1/messages"
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        message = ask(url, asked)
        assert (message["stop_reason"], message["content"][1]["id"]) == ("tool_use", "toolu_0_0")
        events = ask(url, {**asked, "stream": True})
        assert [event["type"] for event in events][:2] == ["message_start", "content_block_start"]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert "".join(delta.get("text", "") for delta in deltas) == "Let me pay"
        assert json.loads(deltas[-1]["partial_json"]) == {"cents": 5}


def test_a_script_may_be_a_function_and_requests_may_fail() -> None:
    with FakeAnthropic(lambda body: Reply(body["messages"][-1]["content"].upper())) as model:
        asked = {"messages": [{"role": "user", "content": "hi"}]}
        model.fail_next(429, retry_after=7)
        with pytest.raises(urllib.error.HTTPError) as failed:
            ask(f"{model.url}/v1/messages", asked)
        assert (failed.value.code, failed.value.headers["Retry-After"]) == (429, "7")
        assert ask(f"{model.url}/v1/messages", asked)["content"][0]["text"] == "HI"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(f"{model.url}/v2/messages", asked)


def refused(url: str, body: dict[str, Any]) -> str:
    """Why a request is refused with status 400, as an invalid request."""
    with pytest.raises(urllib.error.HTTPError, match="400") as failed:
        ask(url, body)
    error = json.load(failed.value)["error"]
    assert error["type"] == "invalid_request_error"
    return str(error["message"])


USER: dict[str, Any] = {"role": "user", "content": "hi"}


def test_chat_completions_refuse_a_tool_call_without_an_answer_right_after_it() -> None:
    calls = [{"id": id, "type": "function", "function": {"name": "pay", "arguments": "{}"}} for id in ("a", "b")]
    asks: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": calls}
    one, other = ({"role": "tool", "tool_call_id": id, "content": "7"} for id in ("a", "b"))
    with FakeOpenAI(lambda _: Reply("Paid.")) as model:
        url = f"{model.url}/v1/chat/completions"
        assert "messages[1]: tool calls without an answer: b." in refused(url, {"messages": [USER, asks, one]})
        assert "without an answer: a, b." in refused(url, {"messages": [USER, asks]})
        assert "without an answer: b." in refused(url, {"messages": [USER, asks, one, USER, other], "stream": True})
        assert ask(url, {"messages": [USER, asks, other, one, USER]})["choices"][0]["message"]["content"] == "Paid."
        assert len(model.requests) == 4


def test_responses_refuse_a_function_call_without_an_output() -> None:
    one, other = ({"type": "function_call", "call_id": id, "name": "pay", "arguments": "{}"} for id in ("a", "b"))
    first, second = ({"type": "function_call_output", "call_id": id, "output": "7"} for id in ("a", "b"))
    with FakeOpenAI(lambda _: Reply("Paid.")) as model:
        url = f"{model.url}/v1/responses"
        assert "input: tool calls without an answer: b." in refused(url, {"input": [USER, one, other, first]})
        for items in [USER, one, first, other, second], [USER, one, other, USER, second, first], [first]:
            assert ask(url, {"input": items})["output"][0]["content"][0]["text"] == "Paid."


def test_messages_refuse_a_tool_use_without_a_result_in_the_next_message() -> None:
    def says(role: str, kind: str, *ids: str) -> dict[str, Any]:
        of = {"tool_use": "id", "tool_result": "tool_use_id"}[kind]
        return {"role": role, "content": [{"type": kind, of: id} for id in ids]}

    asks, answers = says("assistant", "tool_use", "a", "b"), says("user", "tool_result", "b", "a")
    one, other = says("user", "tool_result", "a"), says("user", "tool_result", "b")
    spoken: dict[str, Any] = {"role": "assistant", "content": "Well."}
    with FakeAnthropic(lambda _: Reply("Paid.")) as model:
        url = f"{model.url}/v1/messages"
        assert "messages.1: tool calls without an answer: b." in refused(url, {"messages": [USER, asks, one]})
        assert "without an answer: b." in refused(url, {"messages": [USER, asks, one, spoken, other]})
        assert "messages.3: tool calls without an answer: a, b." in refused(url, {"messages": [USER, spoken, USER, asks]})
        for messages in [USER, asks, answers], [USER, asks, one, other], [USER, asks, USER, answers, spoken, USER]:
            assert ask(url, {"messages": messages})["content"][0]["text"] == "Paid."


def test_the_title_of_a_session_is_no_part_of_the_script() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    asks = [{"role": "user", "content": [{"type": "text", "text": "<session>\nhi\n</session>\n\nWrite the title."}]}]
    title = {"messages": asks, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    with FakeAnthropic(SCRIPT) as model:
        url = f"{model.url}/v1/messages"
        model.fail_next(429)
        assert json.loads(ask(url, title)["content"][0]["text"]) == {"title": "Test"}
        assert (model.requests, len(model.title_requests), asked_so_far(model.url)) == ([], 1, 0)
        with pytest.raises(urllib.error.HTTPError, match="429"):
            ask(url, {"messages": [USER]})
        # A user's request for a title is one like any other.
        own = {**title, "messages": [USER]}
        assert ask(url, own)["content"][0]["text"] == "Let me pay"
        assert (len(model.requests), len(model.title_requests)) == (2, 1)


def test_no_two_servers_give_the_same_id() -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}]}
    ids = set()
    for _ in range(2):
        with FakeAnthropic(SCRIPT) as model:
            ids |= {ask(f"{model.url}/v1/messages", asked)["id"] for _ in range(2)}
    assert len(ids) == 4


def test_an_error_of_a_script_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    def script(body: dict[str, Any]) -> Reply:
        raise KeyError("no such reply")

    with FakeOpenAI(script) as model, pytest.raises(ConnectionError):
        ask(f"{model.environment['OPENAI_BASE_URL']}/chat/completions", {"messages": []})
    assert "no such reply" in capfd.readouterr().err


SERVER = """
import sys
from dalsegno.testing.models import FakeOpenAI, Reply
FakeOpenAI([Reply("hi")], host="0.0.0.0", port=int(sys.argv[1])).wait()
"""


def test_a_server_in_a_process_of_its_own_counts_what_it_was_asked_and_ends_by_sigterm() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sources = str(Path(dalsegno.__file__).parents[1])
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], env={**os.environ, "PYTHONPATH": sources})
    try:
        url = f"http://127.0.0.1:{port}"
        assert asked_so_far(url) == 0
        base = FakeOpenAI.environment_of(url)["OPENAI_BASE_URL"]
        said = ask(f"{base}/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
        assert said["choices"][0]["message"]["content"] == "hi"
        assert asked_so_far(url) == 1
        server.terminate()
        assert server.wait(timeout=60) == 0
    finally:
        server.kill()


def asked_so_far(url: str) -> int:
    """How many requests the server has counted, once it is there."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/requests") as response:
                return int(json.load(response)["requests"])
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError(f"no server at {url}")
