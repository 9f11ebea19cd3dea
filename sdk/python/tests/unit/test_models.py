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
        asked["messages"] += [choice["message"], {"role": "tool", "content": "7"}]
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
        items = [{"role": "user", "content": "hi"}, *first["output"], {"type": "function_call_output", "output": "7"}]
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
