"""Where an interrupted conversation goes on: the transcript ends at each of its entries."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk")

from dalsegno.claude._transcript import MARKER, Resume, ToolUse, marked, plan, usage


def user(id: str, content: Any = "Pay.") -> dict[str, Any]:
    return {"type": "user", "uuid": id, "sessionId": "s", "message": {"role": "user", "content": content}}


def said(id: str, message: str, *blocks: Any, stop: str | None = "tool_use", **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": it} if isinstance(it, str) else it for it in blocks]
    body = {"id": message, "role": "assistant", "model": "m", "content": content, "stop_reason": stop}
    return {"type": "assistant", "uuid": id, "sessionId": "s", "message": {**body, "usage": {"input_tokens": 3, "output_tokens": 2}}, **more}


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "pay", "input": {"cents": id}}


def result(id: str, of: str) -> dict[str, Any]:
    return user(id, [{"type": "tool_result", "tool_use_id": of, "content": "paid"}])


OTHER: dict[str, Any] = {"type": "queue-operation"}

CONVERSATION = [
    OTHER,
    user("u1"),
    {"type": "attachment", "uuid": "a1"},
    said("s1", "m1", "I pay."),
    said("s2", "m1", use("t1")),
    said("s3", "m1", use("t2")),
    result("r1", "t1"),
    result("r2", "t2"),
    {"type": "attachment", "uuid": "a2"},
    said("s4", "m2", "Paid.", stop="end_turn"),
    {"type": "attachment", "uuid": "a3"},
]


def kept(resume: Resume) -> list[str]:
    return [entry["uuid"] for entry in resume.kept if "uuid" in entry]


@pytest.mark.parametrize(
    ("length", "goes_on_from", "at"),
    [
        (0, [], "prompt"),
        (1, [], "prompt"),
        (2, [], "prompt"),
        (3, [], "prompt"),
        (4, [], "prompt"),  # the message is not complete
        (5, ["u1", "a1", "s1", "s2"], "t1"),
        (6, ["u1", "a1", "s1", "s2"], "t1"),  # t2 begins after the result of t1 is stored
        (7, ["u1", "a1", "s1", "s2", "s3", "r1"], "t2"),
        (8, ["u1", "a1", "s1", "s2", "s3", "r1"], "t2"),  # its result is stored in the ledger too
        (9, ["u1", "a1", "s1", "s2", "s3", "r1"], "t2"),
        (10, ["u1", "a1", "s1", "s2", "s3", "r1", "r2", "a2", "s4"], "answer"),
        (11, ["u1", "a1", "s1", "s2", "s3", "r1", "r2", "a2", "s4", "a3"], "answer"),
    ],
)
def test_a_conversation_that_breaks_off_goes_on_at_its_last_call(length: int, goes_on_from: list[str], at: str) -> None:
    entries = CONVERSATION[:length]
    resume = plan(entries)
    step = resume.tool_use.id if resume.tool_use else "prompt" if resume.answer is None else "answer"
    assert (kept(resume), step) == (goes_on_from, at)
    dropped = {entry["uuid"] for entry in entries if "uuid" in entry} - set(goes_on_from)
    assert set(resume.dropped) == dropped
    # What was dropped does not come back: the plan of the rest is the same.
    again = plan([entry for entry in entries if entry.get("uuid") not in dropped])
    assert (kept(again), again.tool_use, again.answer) == (goes_on_from, resume.tool_use, resume.answer)


def test_the_prompt_after_an_answer_is_sent_again() -> None:
    resume = plan([*CONVERSATION, user("u2"), {"type": "attachment", "uuid": "a4"}], answered_by="s4")
    assert (kept(resume)[-2:], resume.dropped, resume.tool_use, resume.answer) == (["s4", "a3"], ("u2", "a4"), None, None)


def test_a_message_that_breaks_off_after_an_answer_leads_back_to_the_prompt() -> None:
    resume = plan([*CONVERSATION, user("u2"), said("s5", "m3", "I", stop=None)], answered_by="s4")
    assert (kept(resume)[-1], set(resume.dropped), resume.answer) == ("a3", {"u2", "s5"}, None)


def test_what_the_cli_says_in_place_of_the_model_is_no_answer() -> None:
    error = said("e1", "m9", "API Error: 400", stop="stop_sequence", isApiErrorMessage=True)
    synthetic = said("e2", "m8", "No response requested.", stop="stop_sequence")
    synthetic["message"]["model"] = "<synthetic>"
    for extra in (error, synthetic):
        resume = plan([*CONVERSATION[:9], extra])
        assert resume.tool_use and resume.tool_use.id == "t2" and extra["uuid"] in resume.dropped


def test_the_messages_of_a_subagent_are_not_of_the_conversation() -> None:
    aside = said("x1", "m9", use("t9"), isSidechain=True)
    assert plan([*CONVERSATION[:5], aside]).tool_use == ToolUse("t1", "pay", {"cents": "t1"})


def test_the_marker_names_the_call_and_follows_the_message_that_asks_for_it() -> None:
    resume = plan(CONVERSATION[:7])
    marker = marked(resume)[-1]
    assert (marker["parentUuid"], marker["attachment"]["type"], marker["attachment"]["toolUseID"]) == ("s3", MARKER, "t2")
    assert marked(resume)[:-1] == list(resume.kept)
    assert marked(plan(CONVERSATION)) == CONVERSATION


def test_the_tokens_of_a_message_count_once() -> None:
    assert usage(CONVERSATION) == {"m1": (3, 2), "m2": (3, 2)}
