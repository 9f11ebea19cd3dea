"""`Session`: one conversation with Claude that outlives its processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
import uuid
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ClaudeSDKClient, Message, ResultMessage

from dalsegno import _json
from dalsegno._errors import Error
from dalsegno._tools import Policy
from dalsegno.aio import AsyncRun
from dalsegno.claude._cli import Cli
from dalsegno.claude._hooks import WAIT_PREFIX, Hooks
from dalsegno.claude._mirror import Mirror
from dalsegno.claude._progress import Progress
from dalsegno.claude._tools import Probe, SdkTool, Tools, tool_of
from dalsegno.claude._transcript import Resume, ToolUse

CONTINUE = "Continue from where you left off."
"""What the CLI itself says to the model when it goes on."""

MARKER_SECONDS = 20.0
"""How long the CLI may take until it asks again for an interrupted call. Then the model is told in words."""

TICK_SECONDS = 0.25

STOP_SECONDS = 5.0
"""How long tools that run may take after SIGTERM. After a suspend, a cancel or at a limit: four times as long."""

LIMITED = (429, 529)
"""The statuses of the model's API that a wait ends: a rate limit, and too much load."""


class SessionFailed(Error):
    """The CLI has ended the conversation with an error, such as of the model's API. The prompt is not answered."""

    __module__ = "dalsegno.claude"


class Session:
    """A conversation of a run with Claude. A run has one, with as many prompts as it needs.

    Guarantees: a call of a tool of this process has one id and one key for ever, and its policy holds. A tool begins
    after the message that asks for it is stored. The run commits a turn after each tool call, and with each answer.
    After a crash the conversation goes on at the last call, and the model is asked at most once more.

    Assumptions: each attempt sends the same prompts in the same order. The tools of `options` that are not of this
    process change nothing, apart from those in `untracked`.
    """

    def __init__(
        self,
        run: AsyncRun[Any],
        options: ClaudeAgentOptions,
        *,
        tools: Mapping[str, Sequence[SdkTool]] | None = None,
        policies: Mapping[str, Policy] | None = None,
        probes: Mapping[str, Probe] | None = None,
        approve: Collection[str] = (),
        approval_expires: float | timedelta | None = None,
        untracked: Collection[str] = (),
    ) -> None:
        """Prepares a session. It sends nothing.

        options: of the SDK. The session sets `resume`, `session_id` and `session_store`, and adds servers and hooks.
        tools: functions of this process that `claude_agent_sdk.tool` has made, by the name of their server.
        policies: of each of these tools, by its full name `mcp__SERVER__TOOL`: see `dalsegno.tool`.
        probes: for each tool with the policy `probe`: `probe(arguments, key)` returns the tool's result, and raises
            `CallFailed` if nothing took effect. A function or an `async def`.
        approve: full names of those of these tools of which a person approves each call. Until then the run has no pod.
        approval_expires: seconds, or a `timedelta`, after which the model reads that nobody has approved.
        untracked: names of other tools that may change something, or patterns (`mcp__files__*`). After a crash the
            model is told that the outcome of such a call is unknown.

        Errors: `ValueError` where options, tools and policies do not fit together.
        """
        self._run, self._given = run, options
        self._error: BaseException | None = None
        self._failed = asyncio.Event()
        self._tools = Tools(tools or {}, policies or {}, probes or {}, self._fail)
        _check(options, self._tools, approve)
        self._mirror = Mirror(run, self._fail)
        self._progress = Progress(run, self._mirror)
        self._hooks = Hooks(
            run,
            self._tools,
            self._mirror,
            self._progress,
            self._fail,
            approve=approve,
            approval_expires=approval_expires,
            untracked=untracked,
            allow=options.can_use_tool is None,
        )
        self._starts = 0
        self._in_words = self._busy = False
        self._end: Any = None
        self.result: str = ""
        """The answer to the latest prompt; empty before."""

    async def run(self, prompt: str) -> AsyncGenerator[Message, None]:
        """Sends a prompt, and yields the SDK's messages until it is answered: `async for message in session.run(…)`.

        After a crash it yields only what comes after it, and for a prompt that is answered already nothing. `result` is
        the answer in each case. Read the messages to their end: a prompt that is left before is not answered.

        Errors: `SessionFailed`; `Leave` where the process has to end, so `Parked` while a person decides, and as
        `Run.check`; what a tool raised, where its outcome is unknown then; `Refused`; the errors of the SDK.
        """
        if self._busy or self._run.sync._turn is not None:
            raise RuntimeError("a session has one prompt at a time and commits turns itself: call it outside of `run.turn()`")
        self._busy = True
        try:
            async with contextlib.aclosing(self._answer(prompt)) as messages:
                async for message in messages:
                    yield message
        finally:
            self._busy = False

    async def _answer(self, prompt: str) -> AsyncGenerator[Any, None]:
        if self._starts == 0:
            await self._progress.load()
            await self._finish_begun()
        answered, self.result = await self._progress.next_prompt(prompt)
        while not answered:
            await self._run.check()
            resume = await self._progress.resume()
            if resume.answer is not None:
                await self._progress.commit_answer(prompt, resume.answer, resume.answered_by)
                self.result = resume.answer
                return
            text = prompt if resume.tool_use is None else await self._words_for(resume.tool_use)
            async with contextlib.aclosing(self._converse(resume, text)) as messages:
                async for message in messages:
                    yield message
            answered = await self._commit_end(prompt)
            if answered:
                yield self._end

    async def _finish_begun(self) -> None:
        """Ends the calls that an earlier attempt has begun, so that no effect is in doubt.

        The CLI asks again for most of them, and gets the stored result. It does not for those of a subagent.
        """
        await self._run.recover()
        for call in self._run.sync._calls.inherited():
            name, id = tool_of(call["id"]), call["id"].rpartition(".")[2]
            open_call = (call["policy"], call["state"]) == ("retrySameKey", "started")
            if open_call and name is not None and name in self._tools:
                await self._tools.call(name, id, call["arguments"]["arguments"])

    async def _words_for(self, use: ToolUse) -> str | None:
        """What to tell the model about an interrupted call; `None` where the CLI asks for the call again by itself."""
        if self._hooks.is_untracked(use.name):
            return CONTINUE
        if not self._in_words:
            return None
        if use.name not in self._tools:
            return CONTINUE
        decision = await self._hooks.decide(use.name, use.id, use.input)
        if decision.wait is not None:
            await self._progress.park(use.name, use.id, decision.wait)
        if not decision.granted:
            return f"The call {use.id} of {use.name} was not made. {decision.reason} {CONTINUE}"
        self._tools.let_through(use.name, use.id, decision.arguments, decision.approval)
        result = await self._tools.call(use.name, use.id, decision.arguments)
        return f"The call {use.id} of {use.name} was interrupted, and is over now. Its result: {_json.dumps(result)} {CONTINUE}"

    async def _converse(self, resume: Resume, text: str | None) -> AsyncGenerator[Any, None]:
        """One life of the CLI. Yields its messages, and leaves its result in `_end`; `None` where it has none."""
        self._end, said = None, None
        self._hooks.open()
        self._mirror.begin(resume, marker=text is None)
        cli = Cli(self._given.cli_path)
        client = ClaudeSDKClient(self._options(resume, cli))
        try:
            await client.connect()
            if text is not None:
                await client.query(text)
            async with contextlib.aclosing(self._receive(client, asks_again=text is None)) as messages:
                async for message in messages:
                    if isinstance(message, ResultMessage):
                        self._end = message
                    else:
                        said = _uuid_of_answer(message) or said
                        yield message
        finally:
            self._hooks.close()
            if self._end is None:
                cli.kill()
            await client.disconnect()  # it hands over the rest of the transcript
            cli.close()
        self._raise_error()
        if self._end is not None and said is not None:
            self._mirror.require(said)

    async def _receive(self, client: Any, asks_again: bool) -> AsyncGenerator[Any, None]:
        """Yields messages to the CLI's result.

        It ends early where the process has to leave, and where the CLI should ask for a call again and does not.
        """
        begun, silent = time.monotonic(), asks_again
        messages = client.receive_response()
        coming = asyncio.ensure_future(_next(messages))
        failed = asyncio.ensure_future(self._failed.wait())
        try:
            while True:
                await asyncio.wait({coming, failed}, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                self._raise_error()
                if coming.done():
                    message, silent = coming.result(), False
                    if message is None:
                        raise SessionFailed("the CLI has ended without a result")
                    yield message
                    if isinstance(message, ResultMessage):
                        return
                    coming = asyncio.ensure_future(_next(messages))
                if self._has_to_leave:
                    await self._finish_tools()
                    return
                if silent and not self._hooks.asked and time.monotonic() - begun > MARKER_SECONDS:
                    self._in_words = True
                    return
        finally:
            coming.cancel()
            failed.cancel()
            await asyncio.wait({coming, failed})

    async def _finish_tools(self) -> None:
        """Lets no tool begin, and waits for those that run."""
        self._hooks.close()
        end = time.monotonic() + (STOP_SECONDS if self._run.stopping else 4 * STOP_SECONDS)
        while self._tools.open_calls and time.monotonic() < end:
            await asyncio.sleep(0.05)

    async def _commit_end(self, prompt: str) -> bool:
        """Commits what the CLI has ended with. Returns whether the prompt is answered.

        Errors: `Parked` where a person has to decide, or a limit has to pass.
        """
        end = self._end
        if end is None:
            return False
        cost = round((end.total_cost_usd or 0) * 1_000_000)
        if end.deferred_tool_use is not None:
            use = end.deferred_tool_use
            await self._progress.park(use.name, use.id, f"{WAIT_PREFIX}{use.id}", cost)
        if end.is_error and end.api_error_status in LIMITED:
            await self._run.rate_limit("anthropic")
            return False
        if end.is_error:
            raise SessionFailed(f"the CLI has ended with an error: {end.result or end.errors or end.subtype}")
        self.result = end.result or ""
        await self._progress.commit_answer(prompt, self.result, self._mirror.answered_by, cost)
        return True

    def _options(self, resume: Resume, cli: Cli) -> ClaudeAgentOptions:
        self._starts += 1
        given, servers = self._given, self._tools.servers
        # A conversation that begins again has another id: on a laptop the CLI still has the file of the old one.
        begun = f"{self._run.sync._calls._key_prefix}{self._run.attempt}.{self._starts}"
        session_id = next((entry["sessionId"] for entry in reversed(resume.kept) if entry.get("sessionId")), None)
        return dataclasses.replace(
            given,
            mcp_servers={**given.mcp_servers, **servers} if isinstance(given.mcp_servers, dict) else given.mcp_servers,
            hooks=self._hooks.add_to(given.hooks),
            cli_path=cli.path,
            disallowed_tools=[*given.disallowed_tools, *self._hooks.refused],
            session_store=self._mirror,
            session_store_flush="eager",
            resume=session_id,
            session_id=None if session_id else str(uuid.uuid5(uuid.NAMESPACE_URL, begun)),
        )

    @property
    def _has_to_leave(self) -> bool:
        run = self._run
        return run.cancelled or run.suspending or run.at_limit or run.stopping

    def _fail(self, error: BaseException) -> None:
        """Ends the session: `run` raises the error. The first one counts."""
        self._error = self._error or error
        self._failed.set()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def _check(options: ClaudeAgentOptions, tools: Tools, approve: Collection[str]) -> None:
    """Errors: `ValueError`, see `Session`."""
    own = ("resume", "session_id", "session_store", "continue_conversation", "fork_session", "enable_file_checkpointing")
    for name in own:
        if getattr(options, name, None):
            raise ValueError(f"options.{name}: the session sets where the conversation is stored, and where it goes on")
    servers = options.mcp_servers if isinstance(options.mcp_servers, dict) else {}
    for name, server in servers.items():
        if server.get("type") == "sdk":
            raise ValueError(f"options.mcp_servers[{name!r}] is of this process: give its tools to Session(tools=…)")
    if tools.servers and servers is not options.mcp_servers:
        raise ValueError("options.mcp_servers is a file: with tools of this process it has to be a dict")
    for name in set(servers) & set(tools.servers):
        raise ValueError(f"two servers have the name {name!r}")
    for name in approve:
        if name not in tools:
            raise ValueError(f"approve: {name!r} is no tool of this process")


def _uuid_of_answer(message: Any) -> str | None:
    """The id of the entry of the transcript in which the model, and not a subagent's, has said this."""
    own = isinstance(message, AssistantMessage) and message.parent_tool_use_id is None and message.error is None
    uuid: str | None = message.uuid if own else None
    return uuid


async def _next(messages: Any) -> Any:
    """The next message; `None` after the last one."""
    return await anext(messages, None)
