"""Interrupts are approvals, and the run has no process while it waits; what people ask of a run stops a graph."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

import dalsegno
from dalsegno.langgraph import RecordSaver, arun_graph, run_graph
from dalsegno.testing.memory import MemoryGateway
from langgraph_attempts import Attempts, Crash


class State(TypedDict):
    log: Annotated[list[Any], operator.add]


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempts]:
    with MemoryGateway() as gateway:
        yield Attempts(gateway, monkeypatch)


Node = Callable[..., Any]


def chain(run: Any, *nodes: Node) -> Any:
    """A graph that runs nodes one after the other."""
    return wired(*nodes).compile(checkpointer=RecordSaver(run))


def wired(*nodes: Node) -> Any:
    graph = StateGraph(State)
    names = [START, *(f"n{number}" for number in range(len(nodes))), END]
    for name, node in zip(names[1:], nodes):
        graph.add_node(name, node)
    for before, after in zip(names, names[1:]):
        graph.add_edge(before, after)
    return graph


def says(what: str) -> Node:
    return lambda state: {"log": [what]}


def asks(what: Any) -> Node:
    def node(state: State) -> Any:
        answer = interrupt(what)
        return {"log": [f"{answer['outcome']} by {answer['by']}"]}

    return node


def test_an_interrupt_parks_the_run_and_its_answer_resumes_the_graph(attempts: Attempts) -> None:
    gateway = attempts.gateway
    with attempts.attempt() as run, pytest.raises(dalsegno.Parked):
        run_graph(run, chain(run, says("a"), asks({"title": "Go on?", "of": 5}), says("b")), {"log": []})
    (id,) = gateway.open_waits
    assert id.startswith("lg:")
    assert gateway.rows.waits[id].request == {
        "kind": "approval",
        "title": "Go on?",
        "proposal": {"title": "Go on?", "of": 5},
    }
    assert gateway.why_no_process == f"it waits for {id}"
    gateway.approve(id, reason="it is fine")
    with attempts.attempt() as run:
        state = run_graph(run, chain(run, says("a"), asks({"title": "Go on?", "of": 5}), says("b")), {"log": []})
        run.finish()
    assert state == {"log": ["a", "approved by ann", "b"]}


def test_what_the_person_said_is_the_answer(attempts: Attempts) -> None:
    def node(state: State) -> Any:
        answer = interrupt("Pay 5 cents?")
        return {"log": [answer]}

    with attempts.attempt() as run, pytest.raises(dalsegno.Parked):
        run_graph(run, chain(run, node), {"log": []})
    (id,) = attempts.gateway.open_waits
    assert attempts.gateway.rows.waits[id].request["title"] == "Pay 5 cents?"
    attempts.gateway.approve(id, by="bob", reason="less", changes={"cents": 4})
    with attempts.attempt() as run:
        ((answer,),) = run_graph(run, chain(run, node), {"log": []}).values()
        run.finish()
    assert answer.pop("at")
    assert answer == {
        "granted": True,
        "outcome": "changed",
        "by": "bob",
        "reason": "less",
        "changes": {"cents": 4},
        "id": id,
    }


def test_a_denial_and_a_deadline_are_answers_that_grant_nothing(attempts: Attempts) -> None:
    def node(state: State) -> Any:
        first, second = interrupt("first"), interrupt("second")
        return {"log": [[it["outcome"], it["granted"]] for it in (first, second)]}

    def ask(it: Any) -> Any:
        return {"expires": 60} if it.value == "second" else {}

    for _ in range(2):
        with attempts.attempt() as run, pytest.raises(dalsegno.Parked):
            run_graph(run, chain(run, node), {"log": []}, ask=ask)
        (id,) = attempts.gateway.open_waits
        if attempts.gateway.rows.waits[id].request["title"] == "first":
            attempts.gateway.deny(id)
        else:
            attempts.gateway.advance(61)
    with attempts.attempt() as run:
        state = run_graph(run, chain(run, node), {"log": []}, ask=ask)
        run.finish()
    assert state["log"] == [["denied", False], ["timedOut", False]]
    assert len(attempts.gateway.rows.waits) == 2, "two interrupts of one node are two waits"


def test_the_interrupts_of_one_step_are_waited_for_together(attempts: Attempts) -> None:
    def graph(run: Any) -> Any:
        builder = StateGraph(State)
        for name in ("left", "right"):
            builder.add_node(name, asks(name))
            builder.add_edge(START, name)
        return builder.compile(checkpointer=RecordSaver(run))

    with attempts.attempt() as run, pytest.raises(dalsegno.Parked):
        run_graph(run, graph(run), {"log": []})
    waits = attempts.gateway.open_waits
    assert len(waits) == 2
    attempts.gateway.approve(waits[0])
    assert attempts.gateway.why_no_process, "one answer is not enough"
    attempts.gateway.deny(waits[1], by="bob")
    with attempts.attempt() as run:
        state = run_graph(run, graph(run), {"log": []})
        run.finish()
    by_title = {attempts.gateway.rows.waits[id].request["title"]: at for at, id in enumerate(waits)}
    answers = ["approved by ann", "denied by bob"]
    assert state["log"] == [answers[by_title["left"]], answers[by_title["right"]]]


def test_an_interrupt_of_a_subgraph_is_an_approval_too(attempts: Attempts) -> None:
    def graph(run: Any) -> Any:
        return chain(run, says("before"), wired(says("inner"), asks("inner?")).compile(), says("after"))

    with attempts.attempt() as run, pytest.raises(dalsegno.Parked):
        run_graph(run, graph(run), {"log": []})
    attempts.gateway.approve(*attempts.gateway.open_waits)
    with attempts.attempt() as run:
        state = run_graph(run, graph(run), {"log": []})
        run.finish()
    assert state["log"][-3:] == ["inner", "approved by ann", "after"]


def test_a_crash_after_the_answer_gives_the_same_answer_again(attempts: Attempts) -> None:
    answers: list[Any] = []

    def node(state: State) -> Any:
        answers.append(interrupt("Go on?"))
        if len(answers) == 1:
            raise Crash
        return {"log": ["done"]}

    with attempts.attempt() as run, pytest.raises(dalsegno.Parked):
        run_graph(run, chain(run, node), {"log": []})
    attempts.gateway.approve(*attempts.gateway.open_waits)
    with attempts.attempt() as run:
        run_graph(run, chain(run, node), {"log": []})
    with attempts.attempt() as run:
        assert run_graph(run, chain(run, node), {"log": []}) == {"log": ["done"]}
        run.finish()
    assert len(answers) == 2 and answers[0] == answers[1]
    assert len(attempts.gateway.rows.waits) == 1


def test_a_crash_before_the_park_opens_the_same_wait(attempts: Attempts) -> None:
    with attempts.attempt() as run:
        run.park = lambda *_: (_ for _ in ()).throw(Crash())  # type: ignore[method-assign]
        run_graph(run, chain(run, asks("Go on?")), {"log": []})
    first = attempts.gateway.open_waits
    with attempts.attempt() as run, pytest.raises(dalsegno.Parked):
        run_graph(run, chain(run, asks("Go on?")), {"log": []})
    assert attempts.gateway.open_waits == first != []


def test_the_agent_chooses_what_people_see_and_what_the_node_gets(attempts: Attempts) -> None:
    def node(state: State) -> Any:
        return {"log": [interrupt({"cents": 5})]}

    def run_once(run: Any) -> Any:
        graph = chain(run, node)
        ask, answer = (lambda it: {"title": f"{it.value['cents']} cents"}), (lambda it, approval: approval.granted)
        return run_graph(run, graph, {"log": []}, ask=ask, answer=answer)

    with attempts.attempt() as run, pytest.raises(dalsegno.Parked):
        run_once(run)
    (id,) = attempts.gateway.open_waits
    assert attempts.gateway.rows.waits[id].request["title"] == "5 cents"
    attempts.gateway.deny(id)
    with attempts.attempt() as run:
        assert run_once(run) == {"log": [False]}
        run.finish()


def test_a_long_text_of_many_lines_becomes_a_title_that_the_gateway_accepts(attempts: Attempts) -> None:
    text = "Please review:\n\n\tthe letter\x1b[31m\n" + "word " * 100
    with attempts.attempt() as run, pytest.raises(dalsegno.Parked):
        run_graph(run, chain(run, asks({"title": text, "summary": "ä" * 2000})), {"log": []})
    (wait,) = attempts.gateway.rows.waits.values()
    assert wait.request["title"].startswith("Please review: the letter [31m word word")
    assert len(wait.request["title"]) == 128 and wait.request["title"].isprintable()
    assert wait.request["summary"] == "ä" * 1024
    assert wait.request["proposal"]["title"] == text


def test_the_schema_of_an_interrupt_is_that_of_the_answer(attempts: Attempts) -> None:
    class Decision(TypedDict):
        cents: int

    def node(state: State) -> Any:
        return {"log": [interrupt("How much?", response_schema=Decision)]}

    with attempts.attempt() as run, pytest.raises(dalsegno.Parked):
        run_graph(run, chain(run, node), {"log": []})
    (id,) = attempts.gateway.open_waits
    assert attempts.gateway.rows.waits[id].request["answerSchema"]["properties"]["cents"]["type"] == "integer"
    attempts.gateway.approve(id, changes={"cents": 4})
    with attempts.attempt() as run:
        assert run_graph(run, chain(run, node), {"log": []}) == {"log": [{"cents": 4}]}
        run.finish()


@pytest.mark.parametrize(
    ("ask", "leave"),
    [
        (lambda gateway: gateway.suspend(), dalsegno.Suspended),
        (lambda gateway: gateway.cancel(), dalsegno.Cancelled),
        (lambda gateway: gateway.reach_limit(), dalsegno.AtLimit),
    ],
)
def test_what_a_person_asks_stops_the_graph_before_its_next_step(
    attempts: Attempts, ask: Any, leave: type[BaseException]
) -> None:
    ran: list[str] = []

    def first(state: State) -> Any:
        ran.append("first")
        ask(attempts.gateway)
        return {"log": ["first"]}

    def second(state: State) -> Any:
        ran.append("second")
        return {"log": ["second"]}

    with attempts.attempt() as run, pytest.raises(leave):
        run_graph(run, chain(run, first, second), {"log": []})
    assert ran == ["first"]
    assert len(attempts.gateway.events) == 3, "the input, the start and the first node are committed"
    if leave is not dalsegno.Cancelled:
        attempts.gateway.suspend(on=False)
        attempts.gateway.reach_limit(on=False)
        with attempts.attempt() as run:
            assert run_graph(run, chain(run, first, second), {"log": []}) == {"log": ["first", "second"]}
            run.finish()
        assert ran == ["first", "second"]


def test_sigterm_stops_the_graph_before_its_next_step(attempts: Attempts) -> None:
    ran: list[str] = []

    def first(state: State) -> Any:
        ran.append("first")
        os.kill(os.getpid(), signal.SIGTERM)
        return {"log": ["first"]}

    attempts.gateway.start_attempt()
    for name, value in attempts.gateway.environment.items():
        attempts._environment.setenv(name, value)
    grace, dalsegno.GRACE_SECONDS = dalsegno.GRACE_SECONDS, 600
    try:
        with pytest.raises(dalsegno.Stopping), dalsegno.attach(heartbeat=False) as run:
            run_graph(run, chain(run, first, lambda state: ran.append("second")), {"log": []})
    finally:
        dalsegno.GRACE_SECONDS = grace
    assert ran == ["first"]


def test_a_turn_has_the_usage_of_its_models(attempts: Attempts) -> None:
    def asks_a_model(state: State) -> Any:
        reply = AIMessage("hello", usage_metadata={"input_tokens": 7, "output_tokens": 3, "total_tokens": 10})
        GenericFakeChatModel(messages=iter([reply])).invoke("hi")
        return {"log": ["asked"]}

    with attempts.attempt() as run:
        run_graph(run, chain(run, asks_a_model, says("b")), {"log": []}, config={"callbacks": []})
        run.finish()
    assert attempts.gateway.rows.usage == {"tokensIn": 7, "tokensOut": 3}


def test_each_call_in_a_process_is_another_input_and_a_later_attempt_repeats_none(attempts: Attempts) -> None:
    ran: list[str] = []

    def node(state: State) -> Any:
        ran.append(state["log"][-1])
        if len(ran) == 2:
            raise Crash
        return {"log": [f"re {state['log'][-1]}"]}

    def letters(run: Any) -> Any:
        graph = chain(run, node)
        return [run_graph(run, graph, {"log": [letter]})["log"] for letter in ("a", "b")]

    with attempts.attempt() as run:
        letters(run)
    with attempts.attempt() as run:
        assert letters(run) == [["a", "re a"], ["a", "re a", "b", "re b"]]
        run.finish()
    assert ran == ["a", "b", "b"]


def test_a_step_that_has_stored_its_writes_is_committed_before_the_next_input(attempts: Attempts) -> None:
    ran: list[str] = []

    def node(state: State) -> Any:
        ran.append(state["log"][-1])
        return {"log": [f"re {state['log'][-1]}"]}

    def letters(run: Any, crash: bool) -> Any:
        graph = chain(run, node)
        session = graph.checkpointer.session
        put = session.threads.put

        def put_or_crash(part: str, stored: Any, values: Any) -> Any:
            if crash and ran:
                raise Crash
            return put(part, stored, values)

        session.threads.put = put_or_crash
        return [run_graph(run, graph, {"log": [letter]})["log"] for letter in ("a", "b")]

    with attempts.attempt() as run:
        letters(run, crash=True)
    with attempts.attempt() as run:
        assert letters(run, crash=False)[1] == ["a", "re a", "b", "re b"]
        run.finish()
    assert ran == ["a", "b"]


def test_an_update_of_the_state_is_a_turn_and_no_new_input(attempts: Attempts) -> None:
    def fails(state: State) -> Any:
        if "fixed" not in state["log"]:
            raise Crash
        return {"log": ["went on"]}

    with attempts.attempt() as run:
        run_graph(run, chain(run, says("a"), fails), {"log": ["input"]})
    with attempts.attempt() as run:
        graph = chain(run, says("a"), fails)
        turn = run.next_turn
        config = {"configurable": {"thread_id": graph.checkpointer.thread_id}}
        graph.update_state(config, {"log": ["fixed"]}, as_node="n0")
        assert run.next_turn == turn + 1
        assert run_graph(run, graph, {"log": ["input"]}) == {"log": ["input", "a", "fixed", "went on"]}
        run.finish()


def test_a_graph_that_has_ended_gives_its_output_again(attempts: Attempts) -> None:
    ran: list[int] = []

    def node(state: State) -> Any:
        ran.append(1)
        return {"log": ["done"]}

    for number in (1, 2):
        with attempts.attempt() as run:
            assert run_graph(run, chain(run, node), {"log": []}) == {"log": ["done"]}
            if number == 2:
                run.finish()
    assert ran == [1]


def test_a_graph_without_a_saver_of_the_run_or_with_breakpoints_is_refused(attempts: Attempts) -> None:
    with attempts.attempt() as run:
        with pytest.raises(dalsegno.Error, match="RecordSaver"):
            run_graph(run, wired(says("a")).compile(), {"log": []})
        with pytest.raises(dalsegno.Error, match="breakpoints"):
            breaks = wired(says("a")).compile(checkpointer=RecordSaver(run), interrupt_before=["n0"])
            run_graph(run, breaks, {"log": []})
        raise Crash


def test_an_asynchronous_graph_waits_and_goes_on(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def node(state: State) -> Any:
        await asyncio.sleep(0)
        return {"log": ["async"]}

    async def attempt() -> Any:
        async with await dalsegno.aio.attach(heartbeat=False, sigterm=False) as run:
            state = await arun_graph(run, chain(run, node, asks("Go on?")), {"log": []})
            await run.finish()
            return state

    gateway = attempts.gateway
    for number in (1, 2):
        gateway.start_attempt()
        for name, value in gateway.environment.items():
            monkeypatch.setenv(name, value)
        if number == 1:
            with pytest.raises(dalsegno.Parked):
                asyncio.run(attempt())
            gateway.end_attempt()
            gateway.approve(*gateway.open_waits)
        else:
            assert asyncio.run(attempt()) == {"log": ["async", "approved by ann"]}
    assert gateway.finish is not None


def test_the_functional_api_waits_and_goes_on(attempts: Attempts) -> None:
    ran: list[int] = []

    def build(run: Any) -> Any:
        @task
        def double(number: int) -> int:
            ran.append(number)
            return number * 2

        @entrypoint(checkpointer=RecordSaver(run))
        def flow(number: int) -> Any:
            first = double(number).result()
            answer = interrupt("Go on?")
            return [double(first).result(), answer["granted"]]

        return flow

    with attempts.attempt() as run, pytest.raises(dalsegno.Parked):
        run_graph(run, build(run), 3)
    attempts.gateway.approve(*attempts.gateway.open_waits)
    for number in (2, 3):
        with attempts.attempt() as run:
            assert run_graph(run, build(run), 3) == [12, True]
            if number == 3:
                run.finish()
    assert ran == [3, 6], "each task ran once"
