"""What happens before and after each tool call of the CLI: the gate, approvals, and a turn of the run."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from claude_agent_sdk import HookMatcher

from dalsegno import _json
from dalsegno._shapes import is_object
from dalsegno._waits import TITLE_CHARACTERS
from dalsegno.aio import AsyncRun
from dalsegno.claude._mirror import Mirror
from dalsegno.claude._progress import Progress
from dalsegno.claude._tools import Tools, never

REFUSED = {
    **dict.fromkeys(("Bash", "BashOutput", "KillShell"), "what a command has changed is not known after a crash"),
    **dict.fromkeys(("Write", "Edit", "MultiEdit", "NotebookEdit"), "the files of a pod are lost with it"),
    **dict.fromkeys(("Agent", "Task"), "a subagent begins anew after a crash, and its calls have other ids then"),
}
"""Tools of the CLI that a session refuses, with the reason, unless `untracked` names them."""

MIRROR_SECONDS = 60.0
"""How long the CLI may take to hand over what has to be stored before a tool runs."""

DAY_SECONDS = 86_400.0

WAIT_PREFIX = "claude."


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a call may be made."""

    granted: bool
    arguments: Any
    """Those of the model, or as a person has changed them."""
    reason: str = ""
    wait: str | None = None
    """The id of the approval that nobody has answered yet."""
    approval: str | None = None
    """The id of the approval that allows the call."""


class Hooks:
    """The hooks of a session.

    Guarantees: a tool begins after the message that asks for it is stored, and after the results before it are. So at
    most one call with an effect has no stored result, and none of those that the model asked for after it has begun.
    """

    def __init__(
        self,
        run: AsyncRun[Any],
        tools: Tools,
        mirror: Mirror,
        progress: Progress,
        fail: Callable[[BaseException], None],
        *,
        approve: Collection[str],
        approval_expires: float | timedelta | None,
        untracked: Collection[str],
        allow: bool,
    ) -> None:
        """allow: whether a tool of this process needs no other permission."""
        self._run, self._tools, self._mirror, self._progress, self._fail = run, tools, mirror, progress, fail
        self._approve, self._approval_expires = frozenset(approve), approval_expires
        self._untracked, self._allow = tuple(untracked), allow
        self._closed = False
        self._deciding = asyncio.Lock()
        self._deferred: str | None = None  # two calls that are deferred in one message lose the first one
        self.asked: set[str] = set()
        """The ids of the calls that the CLI has asked for since `open`."""

    def open(self) -> None:
        """The CLI is about to start."""
        self._closed, self._deferred = False, None
        self.asked.clear()

    def close(self) -> None:
        """From now on no tool begins, and the model gets no result."""
        self._closed = True

    def add_to(self, given: dict[Any, list[Any]] | None) -> dict[Any, list[Any]]:
        """The hooks of the agent, after those of the session. A hook that fails blocks the call."""
        hooks: dict[Any, list[Any]] = {event: list(matchers) for event, matchers in (given or {}).items()}
        for event in ("PreToolUse", "PostToolUse", "PostToolUseFailure"):
            hook = self._guarded(self._before if event == "PreToolUse" else self._after)
            own = HookMatcher(hooks=[hook], timeout=DAY_SECONDS, on_failure="block")
            hooks[event] = [own, *hooks.get(event, [])]
        return hooks

    @property
    def refused(self) -> list[str]:
        """The tools of the CLI that the model does not get."""
        return [name for name in REFUSED if not self.is_untracked(name)]

    def is_untracked(self, name: str) -> bool:
        """Whether the agent lets the model use this tool though nobody knows what a crash leaves behind."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._untracked)

    async def decide(self, name: str, id: str, arguments: Any, subagent: bool = False) -> Decision:
        """Whether a call may be made. For a tool of `approve` a person decides; a message asks for one of them."""
        if name not in self._approve:
            return Decision(True, arguments)
        if subagent:
            return Decision(False, arguments, "A subagent cannot ask a person.")
        wait_id = f"{WAIT_PREFIX}{id}"
        async with self._deciding:
            wait = self._run.waits.get(wait_id)
            if (wait is None or wait.answer is None) and self._deferred not in (None, id):
                return Decision(False, arguments, "A person decides on another call first. Ask again after that.")
            if wait is None:
                wait = await self._run.wait(
                    wait_id,
                    "approval",
                    title=f"Call {name}"[:TITLE_CHARACTERS],
                    proposal=arguments,
                    expires=self._approval_expires,
                )
            answer = wait.answer
            if answer is None:
                self._deferred = id
                return Decision(False, arguments, "A person has to approve it first.", wait=wait_id)
        who = answer.by or "A person"
        if answer.timed_out:
            return Decision(False, arguments, "Nobody has approved it in time.")
        if not answer.granted:
            return Decision(False, arguments, f"{who} has denied it: {answer.reason or 'without a reason'}.")
        if answer.changes is None:
            return Decision(True, arguments, approval=wait_id)
        if not is_object(answer.changes):
            return Decision(False, arguments, f"{who} wants something else: {_json.dumps(answer.changes)}.")
        return Decision(True, {**arguments, **answer.changes}, approval=wait_id)

    def _guarded(self, hook: Callable[[Any], Any]) -> Any:
        """The hook as the SDK calls it. An error ends the session: the CLI would go on without an answer."""

        async def guarded(input: Any, tool_use_id: str | None, context: Any) -> Any:
            try:
                return await hook(input)
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:
                self._fail(error)
                return await never()

        return guarded

    async def _before(self, input: Any) -> dict[str, Any]:
        if self._closed:
            await never()
        name, id, arguments = input["tool_name"], input["tool_use_id"], input["tool_input"]
        self.asked.add(id)
        refusal = self._refusal(name)
        if refusal:
            return _output("deny", refusal)
        await self._mirror.wait_for_call(id, MIRROR_SECONDS)
        decision = await self.decide(name, id, arguments, subagent=bool(input.get("agent_id")))
        if self._closed:
            await never()
        if not decision.granted:
            return _output("defer" if decision.wait else "deny", decision.reason)
        if name in self._tools:
            self._tools.let_through(name, id, decision.arguments, decision.approval)
        allowed = name in self._tools and self._allow or decision.approval is not None
        return _output("allow" if allowed else None, "", decision.arguments if decision.arguments != arguments else None)

    async def _after(self, input: Any) -> dict[str, Any]:
        name, id = input["tool_name"], input["tool_use_id"]
        self._tools.forget(id)
        self._mirror.finished(id)
        if self._closed:
            await never()
        await self._progress.commit_call(name, id, self._tools.open_calls)
        return {}

    def _refusal(self, name: str) -> str:
        """Why a tool may not be called at all; empty if it may."""
        if name in self._tools or self.is_untracked(name):
            return ""
        if name in REFUSED:
            return f"{name} is refused here: {REFUSED[name]}."
        if name.startswith("mcp__"):
            return f"{name} is refused here: nobody knows what a crash leaves of its calls."
        return ""


def _output(decision: str | None, reason: str, arguments: Any = None) -> dict[str, Any]:
    """The answer of a hook before a tool."""
    specific: dict[str, Any] = {"hookEventName": "PreToolUse"}
    if decision is not None:
        specific |= {"permissionDecision": decision, "permissionDecisionReason": reason}
    if arguments is not None:
        specific["updatedInput"] = arguments
    return {"hookSpecificOutput": specific} if len(specific) > 1 else {}
