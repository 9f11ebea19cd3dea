"""Calls of tools whose outcome nobody knows: probes, and what happens without one."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.tools import tool

import dalsegno
from dalsegno.langgraph import Key, guard, run_graph
from langgraph_attempts import Attempts, Crash, agent, call, told
from test_langgraph_guard import QUESTION, DONE, attempts


def test_a_policy_of_a_probe_is_the_probe_itself(attempts: Attempts) -> None:
    with attempts.attempt() as run:
        with pytest.raises(ValueError, match="probe"):
            guard(run, pay="probe")
        raise Crash


@pytest.mark.parametrize("took_effect", [True, False])
def test_a_probe_decides_about_a_call_before_the_graph_goes_on(attempts: Attempts, took_effect: bool) -> None:
    keys: list[str] = []
    probed: list[Any] = []

    @tool
    def pay(cents: int, key: Key = "") -> str:
        """Pays."""
        keys.append(key)
        if len(keys) == 1:
            raise Crash
        return "paid now"

    def find_payment(cents: int, key: str) -> str:
        probed.append((cents, key))
        if not took_effect:
            raise dalsegno.CallFailed
        return "paid before"

    for number in (1, 2):
        with attempts.attempt() as run:
            graph = agent(run, [pay], [call("pay", cents=5), DONE], wrap_tool_call=guard(run, pay=find_payment))
            if number == 1:
                with pytest.raises(Crash):
                    run_graph(run, graph, QUESTION)
                raise Crash
            state = run_graph(run, graph, QUESTION)
            run.finish()
    assert probed == [(5, keys[0])]
    assert told(state) == (["paid before"] if took_effect else ["paid now"])
    assert len({*keys}) == (1 if took_effect else 2), "the second try is another call"


def test_a_call_is_for_the_probe_of_its_own_tool_where_one_name_begins_with_another(attempts: Attempts) -> None:
    probed: list[str] = []

    @tool("pay.back")
    def pay_back(cents: int) -> str:
        """Pays back."""
        raise Crash

    def find(name: str) -> Any:
        def probe(cents: int) -> str:
            probed.append(name)
            return f"{name} has {cents}"

        return probe

    policies = {"pay": find("pay"), "pay.back": find("pay.back")}
    for number in (1, 2):
        with attempts.attempt() as run:
            graph = agent(run, [pay_back], [call("pay.back", cents=5), DONE], wrap_tool_call=guard(run, **policies))
            if number == 1:
                with pytest.raises(Crash):
                    run_graph(run, graph, QUESTION)
                raise Crash
            state = run_graph(run, graph, QUESTION)
            run.finish()
    assert (probed, told(state)) == (["pay.back"], ["pay.back has 5"])


def test_a_call_without_a_probe_leaves_as_uncertain_and_is_no_tool_error(attempts: Attempts) -> None:
    @tool
    def pay(cents: int) -> str:
        """Pays."""
        raise Crash

    def find_payment(cents: int) -> str:
        raise OSError("the bank does not answer")

    for number in (1, 2):
        with attempts.attempt() as run:
            options: dict[str, Any] = {"handle_tool_errors": True, "wrap_tool_call": guard(run, pay=find_payment)}
            graph = agent(run, [pay], [call("pay", cents=5), DONE], **options)
            with pytest.raises(Crash if number == 1 else OSError):
                run_graph(run, graph, QUESTION)
            raise Crash
    # A guard that no longer knows the tool.
    with attempts.attempt() as run:
        with pytest.raises(dalsegno.Uncertain):
            run_graph(run, agent(run, [pay], [call("pay", cents=5), DONE]), QUESTION)
        raise Crash
