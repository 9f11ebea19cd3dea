"""`run_graph`: a graph from where the run stands to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Command, Interrupt

from dalsegno import _json
from dalsegno._errors import Error, Parked, Uncertain, Unhandled
from dalsegno._run import Run
from dalsegno._shapes import is_object
from dalsegno._waits import TITLE_CHARACTERS, Approval
from dalsegno.aio import AsyncRun
from dalsegno.langgraph._guard import recover
from dalsegno.langgraph._saver import RecordSaver, Session

Ask = Callable[[Interrupt], Mapping[str, Any]]
"""From an interrupt to the arguments of `Run.approval` that are not the default: `title`, `summary`, `expires` …"""

Answer = Callable[[Interrupt, Approval], Any]
"""From an interrupt and its approval to what `interrupt()` returns in the graph."""

INPUT = "dalsegno_input"
"""The name in a checkpoint's metadata of which input of the run it belongs to, from 1."""

MAX_SUMMARY_BYTES = 2048


def run_graph(
    run: Run[Any],
    graph: Any,
    input: Any,
    *,
    config: Mapping[str, Any] | None = None,
    ask: Ask | None = None,
    answer: Answer | None = None,
    **options: Any,
) -> Any:
    """Runs a graph on an input, from where the run stands; returns what `graph.invoke` returns at its end.

    The first attempt begins with the input. A later one goes on after the last turn; tasks that have stored what they
    wrote do not run again. If the graph has ended before, its output is returned. A second call in a process gives the
    graph a second input, on the same thread, and so on: a later attempt makes the same calls, and gets the outputs of
    those that are over.

    An interrupt opens an approval with the id `lg:INTERRUPT`. Once all interrupts of a step have one, the run parks,
    and this process leaves. The next one resumes the graph with the answers. Before each step a cancel, a suspend, a
    limit or SIGTERM stops the graph, and this process leaves.

    graph: compiled with a `RecordSaver`. config: LangGraph's config; `thread_id` is the run's own. options: more
        arguments of `graph.invoke`, such as `context`.
    ask: what people see of an interrupt. By default the title is `title` of its value, or the value if that is a text,
        as one line of at most 128 characters, and the summary is `summary` of its value.
    answer: what `interrupt()` returns. By default `{"granted", "outcome", "by", "reason", "changes", "at", "id"}`; if
        the interrupt has a `response_schema`, what the person gave as `changes`.

    Errors: `Leave` (`Parked`, `Suspended`, `Cancelled`, `AtLimit`, `Stopping`); `Uncertain` where nobody knows whether
    a call of an earlier attempt took effect, and no probe is named in `guard`; whatever a node or a tool raises. If
    the graph failed on this input in an earlier attempt, which then went on to the next input, that failure is raised
    again, as an `Error`. `Error` also where the graph has no `RecordSaver` of this run, or has breakpoints
    (`interrupt_before`, `interrupt_after`).
    """
    loop = _Loop(run, graph, input, config, ask, answer)
    while (step := loop.next()) is not None:
        try:
            graph.invoke(step.input, step.config, durability="sync", control=step.control, **options)
        except GraphDrained:
            continue
        except Unhandled as unhandled:
            raise unhandled.error from None
    return loop.output


async def arun_graph(
    run: AsyncRun[Any],
    graph: Any,
    input: Any,
    *,
    config: Mapping[str, Any] | None = None,
    ask: Ask | None = None,
    answer: Answer | None = None,
    **options: Any,
) -> Any:
    """As `run_graph`, with `graph.ainvoke`. Requests, probes, `ask` and `answer` run in the thread of the requests."""
    loop = _Loop(run.sync, graph, input, config, ask, answer)
    while (step := await loop.session.io.acall(loop.next)) is not None:
        try:
            await graph.ainvoke(step.input, step.config, durability="sync", control=step.control, **options)
        except GraphDrained:
            continue
        except Unhandled as unhandled:
            raise unhandled.error from None
    return loop.output


@dataclass(frozen=True, slots=True)
class _Step:
    """One call of the graph."""

    input: Any
    config: dict[str, Any]
    control: RunControl


class _Loop:
    """Decides before each call of the graph what it is called with."""

    def __init__(
        self,
        run: Run[Any],
        graph: Any,
        input: Any,
        config: Mapping[str, Any] | None,
        ask: Ask | None,
        answer: Answer | None,
    ) -> None:
        saver = graph.checkpointer
        if not isinstance(saver, RecordSaver) or saver.session.io.run is not run:
            raise Error(
                "the graph is not compiled with a RecordSaver of this run: compile(checkpointer=RecordSaver(run))"
            )
        if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
            raise Error(
                "the graph has breakpoints, which nobody can answer: let a node call `interrupt()` in their place"
            )
        self.session: Session = saver.session
        self.output: Any = None
        """What the graph has returned, once `next` returns `None`."""
        self._run, self._graph, self._input = run, graph, input
        self._ask, self._answer = ask or _question, answer or _answer
        self._number = self.session.inputs = self.session.inputs + 1
        self._config = self._with_defaults(config or {})

    def next(self) -> _Step | None:
        """The next call; `None` if the graph has ended. It leaves the process if a person asks for that."""
        self._run.check()
        left = recover(self._run)
        if left:
            raise Uncertain(left[0])
        self.session.control = RunControl()
        now = self._graph.get_state(self._config)
        reached = self._reached(now)
        if reached < self._number:
            return self._step(self._input)
        if reached > self._number:
            last = self._last_of_input()
            if last.tasks:
                raise Error(_failure(self._number, last))
            self.output = self._output_of(last)
            return None
        if now.interrupts:
            return self._step(Command(resume=self._answers(now.interrupts)))
        if now.tasks:  # some may have stored what they wrote, and only their turn is missing
            return self._step(None)
        self.output = self._output_of(now)
        return None

    def _reached(self, now: Any) -> int:
        """The number of the input that the thread is at; 0 before the first. `update_state` leaves none behind."""
        if now.created_at is None or INPUT in now.metadata:
            metadata: dict[str, Any] = now.metadata or {}
            return int(metadata.get(INPUT, 0))
        earlier = self._graph.get_state_history(self._config)
        return next((it.metadata[INPUT] for it in earlier if INPUT in it.metadata), 0)

    def _step(self, input: Any) -> _Step:
        assert self.session.control is not None
        return _Step(input, self._config, self.session.control)

    def _with_defaults(self, config: Mapping[str, Any]) -> dict[str, Any]:
        given = config.get("callbacks")
        meter = _Meter(self.session)
        if given is None or isinstance(given, list):
            callbacks: Any = [*(given or []), meter]
        else:
            callbacks = given.copy()
            callbacks.add_handler(meter)
        return {
            **config,
            "configurable": {**config.get("configurable", {}), "thread_id": self.session.thread_id},
            "metadata": {**config.get("metadata", {}), INPUT: self._number},
            "callbacks": callbacks,
        }

    def _answers(self, interrupts: tuple[Interrupt, ...]) -> dict[str, Any]:
        """What each interrupt returns. While one has no answer, the run parks, and this process leaves."""
        while True:
            waits = {it.id: self._run.wait(f"lg:{it.id}", "approval", **self._fields(it)) for it in interrupts}
            if all(wait.answer is not None for wait in waits.values()):
                break
            if self._run.park([wait.id for wait in waits.values()]):
                raise Parked("the run waits for the answers to interrupts")
        answers: dict[str, Any] = {}
        for it in interrupts:
            given, wait_id = waits[it.id].answer, waits[it.id].id
            assert given is not None
            approval = Approval(given.outcome, given.at, given.by, given.reason, given.changes, given.position, wait_id)
            answers[it.id] = self._answer(it, approval)
        return answers

    def _fields(self, interrupt: Interrupt) -> dict[str, Any]:
        fields = {"proposal": _plain(interrupt.value), **_question(interrupt), **self._ask(interrupt)}
        return {**fields, "title": _line(fields["title"])}

    def _last_of_input(self) -> Any:
        """The last state of this input, where the thread is at a later one."""
        only = {INPUT: self._number}
        return next(iter(self._graph.get_state_history(self._config, filter=only, limit=1)))

    def _output_of(self, snapshot: Any) -> Any:
        """The channels that the graph returns."""
        channels = self._graph.output_channels
        values: Any = snapshot.values
        if isinstance(channels, str) or not is_object(values):
            return values
        return {name: values[name] for name in channels if name in values}


def _failure(number: int, last: Any) -> str:
    """Why an input has no output. The agent has caught the error and went on, so it does the same again."""
    error = next((it.error for it in last.tasks if it.error), "its graph was not run to its end")
    return f"input {number} failed in an earlier attempt, and a later input followed it: {error}"


class _Meter(BaseCallbackHandler):
    """Counts what models and tools spend, for the next turn. Answers that come from the store cost nothing."""

    run_inline = True

    def __init__(self, session: Session) -> None:
        self._session = session

    def on_llm_end(self, response: Any, **_: Any) -> None:
        for generations in response.generations:
            for generation in generations:
                usage = getattr(getattr(generation, "message", None), "usage_metadata", None)
                if usage:
                    self._session.spend(tokensIn=usage["input_tokens"], tokensOut=usage["output_tokens"])

    def on_tool_end(self, output: Any, **_: Any) -> None:
        self._session.spend(toolCalls=1)


def _question(interrupt: Interrupt) -> dict[str, Any]:
    """What people see of an interrupt by default."""
    value, schema = interrupt.value, interrupt.response_schema
    said: dict[str, Any] = value if is_object(value) else {}
    title, summary = said.get("title", value), said.get("summary")
    fields: dict[str, Any] = {
        "title": title if isinstance(title, str) and title.strip() else "The graph asks for an answer"
    }
    if isinstance(summary, str):
        fields["summary"] = summary.encode()[:MAX_SUMMARY_BYTES].decode(errors="ignore")
    if isinstance(schema, dict):
        fields["answer_schema"] = schema
    return fields


def _line(text: str) -> str:
    """A text as a title: one line of at most 128 characters. The proposal has the whole text."""
    line = " ".join("".join(it if it.isprintable() else " " for it in text).split())
    return line if len(line) <= TITLE_CHARACTERS else f"{line[: TITLE_CHARACTERS - 1]}…"


def _answer(interrupt: Interrupt, approval: Approval) -> Any:
    """What `interrupt()` returns by default."""
    if interrupt.response_schema is not None:
        if approval.outcome != "changed":
            raise Error(
                "an interrupt with a response_schema was answered without changes: give `run_graph` an `answer`"
            )
        return approval.changes
    return {
        "granted": approval.granted,
        "outcome": approval.outcome,
        "by": approval.by,
        "reason": approval.reason,
        "changes": approval.changes,
        "at": approval.at,
        "id": approval.id,
    }


def _plain(value: Any) -> Any:
    """An interrupt's value as JSON; what has no JSON becomes a text."""
    try:
        return _json.copy(value)
    except (TypeError, ValueError):
        return repr(value)
