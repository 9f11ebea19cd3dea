"""Checkpoints in records: what is a turn, what fits, and who may write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance")

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import create_checkpoint, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from dalsegno import Parked, Refused, Run, aio
from dalsegno.langgraph import RecordSaver, run_graph
from dalsegno.langgraph._threads import MAX_INLINE_BYTES
from dalsegno.testing.memory import MemoryGateway
from langgraph_attempts import Attempts, Crash, OldWorker

CONFORMANCE_CASES = 81


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempts]:
    with MemoryGateway() as gateway:
        yield Attempts(gateway, monkeypatch)


def at(saver: RecordSaver, ns: str = "", thread: str | None = None, **more: str) -> Any:
    return {"configurable": {"thread_id": thread or saver.thread_id, "checkpoint_ns": ns, **more}}


def checkpoint(saver: RecordSaver, **values: Any) -> tuple[Any, dict[str, str | int | float]]:
    """A new checkpoint with these values, and the versions of their channels."""
    versions: dict[str, str | int | float] = {name: saver.get_next_version(None, None) for name in values}
    made = create_checkpoint({**empty_checkpoint(), "channel_versions": versions}, None, 1)
    return {**made, "channel_values": values}, versions


def put(saver: RecordSaver, ns: str = "", thread: str | None = None, **values: Any) -> Any:
    made, versions = checkpoint(saver, **values)
    return saver.put(at(saver, ns, thread), made, {"source": "loop", "step": 1}, versions)


def values(saver: RecordSaver) -> Any:
    """The values of the latest checkpoint of the run's own thread."""
    found = saver.get_tuple(at(saver))
    assert found
    return found.checkpoint["channel_values"]


def test_the_saver_passes_langgraphs_conformance_suite(attempts: Attempts) -> None:
    with attempts.attempt() as run:

        @checkpointer_test(name="records")
        async def saver() -> Any:
            yield RecordSaver(run)

        results = asyncio.run(validate(saver)).results.values()
        assert [failure for result in results for failure in result.failures or []] == []
        assert sum(result.tests_passed for result in results) == CONFORMANCE_CASES
        raise Crash


def test_a_checkpoint_of_the_runs_own_thread_is_a_turn_and_no_other_is(attempts: Attempts) -> None:
    with attempts.attempt() as run:
        saver = RecordSaver(run)
        put(saver, a=1)
        assert run.next_turn == 2
        put(saver, "child:1", a=1)
        put(saver, thread="other", a=1)
        saver.put_writes(put(saver, a=2), [("a", 3)], "task")
        assert run.next_turn == 3
        raise Crash
    assert [request for request in attempts.gateway.requests if request.startswith("turns")] == ["turns/1", "turns/2"]


def test_a_turn_and_its_records_are_one_request(attempts: Attempts) -> None:
    with attempts.attempt() as run:
        saver = RecordSaver(run)
        before = len(attempts.gateway.requests)
        put(saver, a=1, b=[2], c={"d": 3})
        loaded = ["records", "records"]
        assert attempts.gateway.requests[before:] == [*loaded, "turns/1"]
        put(saver, a=4)
        saver.get_tuple(at(saver))
        assert attempts.gateway.requests[before:] == [*loaded, "turns/1", "turns/2"], "a read costs no request"
        raise Crash


def test_the_next_attempt_reads_what_the_last_one_stored(attempts: Attempts) -> None:
    with attempts.attempt() as run:
        saver = RecordSaver(run)
        stored = put(saver, a=1, none=None, text="ä")
        saver.put_writes(stored, [("a", 2), ("a", 3)], "task", "path")
        saver.put_writes(stored, [("a", 4)], "task", "path")
        first = saver.get_tuple(at(saver))
        raise Crash
    with attempts.attempt() as run:
        second = RecordSaver(run).get_tuple(at(saver))
        raise Crash
    assert first == second
    assert second.checkpoint["channel_values"] == {"a": 1, "none": None, "text": "ä"}
    assert second.pending_writes == [("task", "a", 2), ("task", "a", 3)], "a task that runs again keeps what it wrote"


@pytest.mark.parametrize("version", [2, 3])
def test_long_values_and_long_writes_come_back(attempts: Attempts, version: int) -> None:
    long = "x" * (MAX_INLINE_BYTES * 2)
    with attempts.attempt() as run:
        saver = RecordSaver(run)
        stored = put(saver, long=long, longer=long + "y", short="s")
        saver.put_writes(stored, [("long", long)], "task")
        raise Crash
    with attempts.attempt() as run:
        run._transport._contract = version
        saver = RecordSaver(run)
        found = saver.get_tuple(at(saver))
        assert found.checkpoint["channel_values"] == {"long": long, "longer": long + "y", "short": "s"}
        assert found.pending_writes == [("task", "long", long)]
        saver.delete_thread(saver.thread_id)
        assert saver.get_tuple(at(saver)) is None
        raise Crash
    assert not attempts.gateway.rows.records, "nothing of a deleted thread is left, its blobs included"


def test_many_channels_and_many_writes_are_stored(attempts: Attempts) -> None:
    with attempts.attempt() as run:
        saver = RecordSaver(run)
        many: dict[str, Any] = {f"channel-{number}": number for number in range(1_500)}
        stored = put(saver, "", None, **many)
        saver.put_writes(stored, [("a", number) for number in range(1_500)], "task")
        raise Crash
    with attempts.attempt() as run:
        found = RecordSaver(run).get_tuple(at(saver))
        raise Crash
    assert found.checkpoint["channel_values"] == many
    assert [value for _, _, value in found.pending_writes] == list(range(1_500))


def test_long_names_fit_into_keys(attempts: Attempts) -> None:
    ns = "|".join(f"a node with a name {number}:{'0' * 36}" for number in range(12))
    name, thread = "channel" * 60, "thread" * 80
    with attempts.attempt() as run:
        saver = RecordSaver(run)
        stored = put(saver, ns, thread, **{name: 1})
        saver.put_writes(stored, [(name, 2)], "task" * 50)
        raise Crash
    with attempts.attempt() as run:
        (found,) = RecordSaver(run).list(None)
        raise Crash
    assert found.config["configurable"] == {**stored["configurable"], "thread_id": thread, "checkpoint_ns": ns}
    assert found.checkpoint["channel_values"] == {name: 1}
    assert found.pending_writes == [("task" * 50, name, 2)]


def test_an_old_attempt_may_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryGateway() as gateway:

        def attach() -> RecordSaver:
            gateway.start_attempt()
            for name, value in gateway.environment.items():
                monkeypatch.setenv(name, value)
            return RecordSaver(OldWorker.attach(heartbeat=False, sigterm=False))

        old = attach()
        stored = put(old, a=1)
        put(old, thread="other", a=1)
        new = attach()
        for write in (
            lambda: put(old, a=2),
            lambda: put(old, "child:1", a=2),
            lambda: put(old, thread="other", a=2),
            lambda: old.put_writes(stored, [("a", 2)], "task"),
            lambda: old.delete_thread(old.thread_id),
            lambda: old.copy_thread("other", "third"),
            lambda: old.prune([old.thread_id], strategy="delete"),
            lambda: asyncio.run(old.aput_writes(stored, [("a", 2)], "task")),
        ):
            with pytest.raises(Refused) as refused:
                write()
            assert refused.value.code == "FENCED"
        assert values(new) == {"a": 1}
        assert len([*new.list(None)]) == 2
        put(new, a=3)
        assert gateway.rows.attempt == 2 and len(gateway.events) == 2


def test_a_copy_with_an_allowlist_shares_everything_else(attempts: Attempts) -> None:
    with attempts.attempt() as run:
        saver = RecordSaver(run)
        copy = saver.with_allowlist([("langgraph_attempts", "Attempts")])
        assert isinstance(copy, RecordSaver) and copy.session is saver.session
        put(copy, a=1)
        assert values(saver) == {"a": 1}
        raise Crash


class Log(TypedDict):
    log: Annotated[list[str], lambda one, other: one + other]


def counting(run: Run[Any], until: int, fails_at: int | None = None) -> Any:
    """A graph that appends numbers until there are so many."""

    def count(state: Log) -> Any:
        if len(state["log"]) == fails_at:
            raise Crash
        return {"log": [str(len(state["log"]))]}

    graph = StateGraph(Log)
    graph.add_node("count", count)
    graph.add_edge(START, "count")
    graph.add_conditional_edges("count", lambda state: "count" if len(state["log"]) < until else END)
    return graph.compile(checkpointer=RecordSaver(run))


def test_a_rewound_run_goes_on_from_the_checkpoint_of_its_turn(attempts: Attempts) -> None:
    with attempts.attempt() as run:
        run_graph(run, counting(run, 6, fails_at=4), {"log": []})
    assert len(attempts.gateway.events) == 6, "the input, the start, and four numbers"
    attempts.gateway.rewind(4)
    with attempts.attempt() as run:
        graph = counting(run, 6)
        now = graph.get_state(at(graph.checkpointer))
        assert now.values == {"log": ["0", "1"]} and run.next_turn == 5
        assert run_graph(run, graph, {"log": []}) == {"log": ["0", "1", "2", "3", "4", "5"]}
        run.finish()


def test_a_fork_of_the_run_goes_on_under_its_own_id(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    with attempts.attempt() as run:
        run_graph(run, counting(run, 6, fails_at=3), {"log": []})
    with MemoryGateway(name="test/fork") as fork:
        fork.rows.records = dict(attempts.gateway.rows.records)
        with Attempts(fork, monkeypatch).attempt() as run:
            graph = counting(run, 6)
            assert graph.checkpointer.thread_id in fork.environment["DALSEGNO_URL"]
            assert graph.get_state(at(graph.checkpointer)).values == {"log": ["0", "1", "2"]}
            assert run_graph(run, graph, {"log": []})["log"] == ["0", "1", "2", "3", "4", "5"]
            run.finish()


def delta_log(run: Run[Any], until: int) -> Any:
    """The same with a channel that stores what is written to it, and its value at times only."""

    def extend(value: list[str], writes: list[list[str]]) -> list[str]:
        return [*value, *(it for write in writes for it in write)]

    kind = Annotated[list[str], DeltaChannel(extend, snapshot_frequency=4)]
    state = TypedDict("state", {"log": kind})
    graph = StateGraph(state)
    graph.add_node("count", lambda state: {"log": [str(len(state["log"]))]})
    graph.add_edge(START, "count")
    graph.add_conditional_edges("count", lambda state: "count" if len(state["log"]) < until else END)
    return graph.compile(checkpointer=RecordSaver(run))


def test_a_prune_keeps_what_a_delta_channel_is_rebuilt_from(attempts: Attempts) -> None:
    numbers = [str(number) for number in range(10)]
    with attempts.attempt() as run:
        graph = delta_log(run, 10)
        assert run_graph(run, graph, {"log": []}) == {"log": numbers}
        saver = graph.checkpointer
        before = len([*saver.list(at(saver))])
        saver.prune([saver.thread_id])
        after = len([*saver.list(at(saver))])
        assert 1 <= after < before
        raise Crash
    with attempts.attempt() as run:
        graph = delta_log(run, 10)
        assert graph.get_state(at(graph.checkpointer)).values == {"log": numbers}
        assert len([*graph.checkpointer.list(at(graph.checkpointer))]) == after
        raise Crash


@pytest.mark.parametrize("steps", [10, 200])
def test_a_prune_of_many_checkpoints_takes_few_requests(attempts: Attempts, steps: int) -> None:
    with attempts.attempt() as run:
        graph = counting(run, steps)
        run_graph(run, graph, {"log": []}, config={"recursion_limit": 1000})
        before = len(attempts.gateway.requests)
        graph.checkpointer.prune([graph.checkpointer.thread_id])
        assert len(attempts.gateway.requests) - before <= 6, "for each space one that reads and one that deletes"
        assert len([*graph.checkpointer.list(at(graph.checkpointer))]) == 1
        raise Crash
    assert len({key for space, key in attempts.gateway.rows.records if space == "lg.checkpoints"}) == 1


@pytest.mark.parametrize("version", [2, 3])
def test_a_prune_deletes_the_blobs_of_what_it_deletes(attempts: Attempts, version: int) -> None:
    with attempts.attempt() as run:
        saver = RecordSaver(run)
        put(saver, long="x" * MAX_INLINE_BYTES)
        put(saver, long="y" * MAX_INLINE_BYTES)
        run._transport._contract = version
        saver.prune([saver.thread_id])
        assert values(saver) == {"long": "y" * MAX_INLINE_BYTES}
        raise Crash
    kept = sorted(space for space, _ in attempts.gateway.rows.records)
    assert kept == ["lg.blobs", "lg.blobs", "lg.blobs", "lg.checkpoints", "lg.values"], "a pointer and its two chunks"


def test_after_a_cancelled_request_that_ended_the_process_nothing_more_is_stored(attempts: Attempts) -> None:
    async def agent(run: Run[Any]) -> None:
        both = aio.AsyncRun(run)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(both.approval("buy", 1, title="Buy?", linger=0.5), 0.1)
        put(RecordSaver(both), a=1)

    with pytest.raises(Parked), attempts.attempt() as run:
        asyncio.run(agent(run))
    assert not attempts.gateway.rows.records


def test_a_prune_of_other_graphs_keeps_the_latest_checkpoint_alone(attempts: Attempts) -> None:
    with attempts.attempt() as run:
        graph = counting(run, 5)
        run_graph(run, graph, {"log": []})
        graph.checkpointer.prune([graph.checkpointer.thread_id])
        assert len([*graph.checkpointer.list(at(graph.checkpointer))]) == 1
        raise Crash
    with attempts.attempt() as run:
        graph = counting(run, 5)
        assert run_graph(run, graph, {"log": []}) == {"log": ["0", "1", "2", "3", "4"]}
        run.finish()
