"""Where an interrupted conversation goes on: pure functions over the entries of Claude's transcript.

The transcript's format is private to the CLI. What is read of it: the `type`, `uuid` and `message` of entries, and in a
message its `id`, `model`, `stop_reason`, `usage` and blocks. An entry of another shape is passed over.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dalsegno._shapes import is_array, is_mapping

Entry = Mapping[str, Any]

NOT_FINAL = (None, "tool_use", "pause_turn", "max_tokens")
"""Stop reasons after which a message without a tool call is not the model's last word."""

MARKER = "hook_deferred_tool"
"""The attachment that makes the CLI ask again for a tool call, for the same id and without the model."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call that the model has asked for."""

    id: str
    name: str
    input: Any


@dataclass(frozen=True, slots=True)
class Resume:
    """How a conversation goes on.

    With `answer` the prompt is answered, and nothing is left to do. With `tool_use` the model waits for that call's
    result. With neither the prompt has to be sent (again).
    """

    kept: tuple[Entry, ...] = ()
    """What the conversation goes on from; empty: it begins."""
    dropped: tuple[str, ...] = ()
    """The uuids of entries after that point: they are not part of the conversation any more."""
    tool_use: ToolUse | None = None
    answer: str | None = None
    """The text of the model's last word."""
    answered_by: str | None = None
    """The uuid of the answer's last entry."""


def plan(entries: Sequence[Entry], answered_by: str | None = None) -> Resume:
    """How the conversation goes on. `answered_by`: the answer of the prompt before this one, as `Resume` named it."""
    last = max((at for at, entry in enumerate(entries) if is_answer(entry)), default=None)
    if last is None or entries[last].get("uuid") == answered_by:
        return _cut(entries, -1 if last is None else last)
    group_id = entries[last]["message"].get("id")
    group = [at for at, entry in enumerate(entries) if is_answer(entry) and entry["message"].get("id") == group_id]
    uses = [(at, block) for at in group for block in blocks(entries[at], "tool_use")]
    if uses:
        return _resume_at_call(entries, uses)
    if entries[last]["message"].get("stop_reason") in NOT_FINAL:  # the message is not complete: it is not the model's word
        before = plan(entries[: group[0]], answered_by)
        return Resume(before.kept, (*before.dropped, *_uuids(entries[group[0] :])), before.tool_use)
    text = "".join(block.get("text", "") for at in group for block in blocks(entries[at], "text"))
    return Resume(tuple(entries), (), None, text, entries[last].get("uuid"))


def _cut(entries: Sequence[Entry], last: int) -> Resume:
    """The prompt after `last` has no answer: it is sent again."""
    prompts = (at for at, entry in enumerate(entries) if at > last and entry.get("type") == "user")
    end = next(prompts, len(entries))
    return Resume(tuple(entries[:end]) if last >= 0 else (), tuple(_uuids(entries[end:])))


def _resume_at_call(entries: Sequence[Entry], uses: Sequence[tuple[int, Mapping[str, Any]]]) -> Resume:
    """The first call of a message that has no result; if all have one, the last call.

    Calls with an effect run one after the other, and each begins after the results before it are stored (`Session`).
    So the calls after the first one without a result have not begun. The model asks for them again.
    """
    results: dict[str, int] = {}
    for at, entry in enumerate(entries):
        for block in blocks(entry, "tool_result"):
            results.setdefault(block.get("tool_use_id", ""), at)
    open_at, use = next(((at, block) for at, block in uses if block["id"] not in results), uses[-1])
    before = uses[: [block for _, block in uses].index(use)]
    earlier = {results[block["id"]] for _, block in before}
    kept = [entry for at, entry in enumerate(entries) if at <= open_at or at in earlier]
    dropped = [entry for at, entry in enumerate(entries) if at > open_at and at not in earlier]
    return Resume(tuple(kept), tuple(_uuids(dropped)), ToolUse(use["id"], use["name"], use.get("input")))


def marked(resume: Resume) -> list[Entry]:
    """The conversation to load, with the marker that makes the CLI ask for `tool_use` again."""
    use = resume.tool_use
    if use is None:
        return list(resume.kept)
    asking = next(entry for entry in reversed(resume.kept) if any(it["id"] == use.id for it in blocks(entry, "tool_use")))
    shared = ("isSidechain", "timestamp", "userType", "entrypoint", "cwd", "sessionId", "version", "gitBranch")
    attachment = {"type": MARKER, "toolUseID": use.id, "toolName": use.name, "toolInput": use.input}
    attachment |= {"hookName": "settings", "hookEvent": "PreToolUse", "permissionMode": "default"}
    marker = {name: asking[name] for name in shared if name in asking}
    marker |= {"type": "attachment", "uuid": str(uuid.uuid4()), "parentUuid": asking["uuid"], "attachment": attachment}
    return [*resume.kept, marker]


def blocks(entry: Entry, kind: str) -> Iterator[Mapping[str, Any]]:
    """The blocks of this type in an entry's message."""
    message = entry.get("message")
    content = message.get("content") if is_mapping(message) else None
    for block in content if is_array(content) else ():
        if is_mapping(block) and block.get("type") == kind:
            yield block


def usage(entries: Iterable[Entry]) -> dict[str, tuple[int, int]]:
    """What each message of the model cost, by its id and in order: tokens in, with those of the cache, and out."""
    found: dict[str, tuple[int, int]] = {}
    for entry in entries:
        message = entry.get("message")
        if entry.get("type") == "assistant" and is_mapping(message) and message.get("model") != "<synthetic>":
            spent: Mapping[str, Any] = message.get("usage") or {}
            inward = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
            tokens_in = sum(spent.get(name) or 0 for name in inward)
            found[message.get("id") or entry.get("uuid", "")] = (tokens_in, spent.get("output_tokens") or 0)
    return found


def is_answer(entry: Entry) -> bool:
    """Whether the model said it: neither a subagent's model, nor the CLI in its place."""
    message = entry.get("message")
    own = entry.get("type") == "assistant" and is_mapping(message) and message.get("model") != "<synthetic>"
    return own and not entry.get("isSidechain") and not entry.get("isApiErrorMessage")


def _uuids(entries: Iterable[Entry]) -> Iterator[str]:
    return (entry["uuid"] for entry in entries if entry.get("uuid"))
