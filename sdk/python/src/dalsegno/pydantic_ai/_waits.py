"""Approvals and outside events of an agent run: waits of the run, for which it gives its pod back."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from pydantic import JsonValue
from pydantic_ai.durable_exec import ExternalEventError, ExternalEventWaiter
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolApprovalResult, DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied

from dalsegno._errors import Parked, Unhandled
from dalsegno._inbox import as_user_turn
from dalsegno._run import Run
from dalsegno._shapes import is_object
from dalsegno._waits import TITLE_CHARACTERS, Answer, Wait
from dalsegno.pydantic_ai._journal import approval_id, approval_name, clean, open_run, recorded, send

SUMMARY_BYTES = 2048


class MessageWaiter(ExternalEventWaiter):
    """Waits for a message to the run. The token is the message's topic; the payload is the message.

    `kubectl dalsegno send RUN --topic TOKEN '{"approvals": {…}}'` resolves it, and so does every other way to send a run
    a message.
    """

    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[JsonValue]], timeout: timedelta | None
    ) -> JsonValue:
        """See `ExternalEventWaiter.wait`. Errors: `ExternalEventError` at the timeout; `Parked` while no message came."""
        run = open_run()
        token = run._anew(run._next_id(f"event.{clean(name)}"))

        async def asked() -> object:
            return {"answer": await ask(token)}

        answer: JsonValue = (await recorded(run, f"ask.{clean(name)}", asked))["answer"]
        if answer is not None:
            return answer
        message = await send(run, run.message, token, id=token, expires=timeout)
        if message is None:
            raise ExternalEventError(f"No message with the topic {token} came within {timeout}.")
        payload: JsonValue = message.value
        return payload


async def ask_for_approvals(
    run: Run[Any], run_id: str | None, requests: DeferredToolRequests
) -> DeferredToolResults:
    """Opens an approval for each call, and returns the answers. Errors: `Parked` while one of them is open."""
    ids = {part.tool_call_id: _name(run, run_id, part) for part in requests.approvals}
    for part in requests.approvals:
        metadata = requests.metadata.get(part.tool_call_id)
        await send(run, _open, run, ids[part.tool_call_id], part, metadata)
    if any(run.waits[id].answer is None for id in ids.values()):
        if await send(run, run.park, list(ids.values())):
            raise Unhandled(Parked("the run waits for approval"))
        for id in ids.values():
            await send(run, run._waits.read, id)
    answers = {part.tool_call_id: _decide(part, run.waits[ids[part.tool_call_id]]) for part in requests.approvals}
    by = {call: answer.by for call, id in ids.items() if (answer := run.waits[id].answer) and answer.by}
    return requests.build_results(approvals=answers, answered_by=by)


def _name(run: Run[Any], run_id: str | None, part: ToolCallPart) -> str:
    return approval_id(run, approval_name(part.tool_name, run_id, part.tool_call_id))


def _open(run: Run[Any], id: str, part: ToolCallPart, metadata: dict[str, Any] | None) -> None:
    summary = json.dumps(metadata, ensure_ascii=False, default=str) if metadata else None
    run.wait(
        id,
        "approval",
        title=f"Call {part.tool_name}"[:TITLE_CHARACTERS],
        summary=summary and summary.encode()[:SUMMARY_BYTES].decode(errors="ignore"),
        proposal=part.args_as_dict(),
    )


def _decide(part: ToolCallPart, wait: Wait) -> DeferredToolApprovalResult:
    """What the agent does with a person's answer. Changes are fields of the arguments that replace the proposed ones."""
    answer = wait.answer
    assert answer is not None
    if not answer.granted:
        return ToolDenied(_denial(answer))
    if answer.changes is None:
        return ToolApproved()
    if is_object(answer.changes):
        return ToolApproved(override_args={**part.args_as_dict(), **answer.changes})
    return ToolDenied(as_user_turn(answer)["content"])


def _denial(answer: Answer) -> str:
    if answer.timed_out:
        return "Nobody has answered in time. The tool was not called."
    return f"{answer.by or 'A person'} denied the call. Reason: {json.dumps(answer.reason)}"
