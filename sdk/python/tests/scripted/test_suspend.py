"""Suspend: the worker parks between two steps."""

import json

import pytest

from scripted_gateway import (
    LONGEST_SECONDS, NO_ANSWER, Answer, ScriptedGateway, attached, claimed, committed, ok, problem
)

PARKED, READY = Answer(200, {"result": "parked"}), Answer(200, {"result": "ready"})
UNSETTLED = problem(409, "UNSETTLED_CALLS")


def test_a_check_parks_a_suspended_run_and_exits_with_0(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(suspend=True)]
    gateway.script["park"] = [NO_ANSWER, PARKED]
    code, out, err = gateway.run("""
        Run.attach(heartbeat=False).check()
        print("goes on")
    """)
    assert (code, out, err) == (0, "", "")
    first, second = gateway.bodies("park")
    assert first == second
    assert [len(value) for value in json.loads(first).values()] == [36]


def test_a_suspend_heard_by_heartbeat_parks_between_two_steps(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(heartbeatSeconds=0.05)]
    gateway.script["heartbeat"] = [ok(), ok(suspend=True)]
    gateway.script["park"] = [PARKED]
    code, out, err = gateway.run("""
        run = Run.attach()
        while True:
            run.check()
            time.sleep(0.05)
    """)
    assert (code, out, err) == (0, "", "")


def test_a_check_acknowledges_a_cancel_rather_than_a_suspend(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(suspend=True, cancel=True)]
    gateway.script["cancelled"] = [ok()]
    assert gateway.run("Run.attach(heartbeat=False).check()")[0] == 0
    assert gateway.bodies("cancelled") == [b""] and "park" not in gateway.script


def test_a_run_whose_suspend_was_lifted_goes_on(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(suspend=True)]
    gateway.script["park"] = [READY]
    gateway.script["turns/1"] = [committed(1)]
    code, out, err = gateway.run("""
        run = Run.attach(heartbeat=False)
        for _ in range(2):
            run.check()
            print(run.suspending)
        run.commit(1, state=1)
    """)
    assert (code, out, err) == (0, "False\nFalse\n", "")
    assert len(gateway.bodies("park")) == 1


def test_heartbeats_continue_after_a_park_that_is_not_needed(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(heartbeatSeconds=0.05)]
    gateway.script["park"] = [READY]
    gateway.script["turns/1"] = [committed(1).but(until=lambda: gateway.beats_since("turns/1") > 1)]
    code, out, err = gateway.run("""
        run = Run.attach()
        print(run.park())
        run.commit(1, state=1)
    """)
    assert (code, out, err) == (0, "False\n", "")


def fence_during_a_park(gateway: ScriptedGateway, then: Answer) -> None:
    """Two heartbeats or more are refused while the park is not answered; the next park is answered so."""
    gateway.script["attach"] = [attached(heartbeatSeconds=0.05)]
    gateway.script["heartbeat"] = [ok(), problem(409, "FENCED").but(until=lambda: gateway.bodies("park"))]
    late = problem(503, "UNAVAILABLE").but(until=lambda: gateway.beats_since("attach") > 3)
    gateway.script["park"] = [late, then]


def test_a_heartbeat_refused_after_our_own_park_is_not_taken_for_a_fence(gateway: ScriptedGateway) -> None:
    fence_during_a_park(gateway, PARKED)
    agent = gateway.start("""
        run = Run.attach()
        print(run.park())
        sys.stdin.readline()
        time.sleep(0.3)
        print("cleaned up")
    """)
    assert agent.stdout and agent.stdout.readline() == "True\n"
    beats = len(gateway.bodies("heartbeat"))
    out, err = agent.communicate("\n", timeout=LONGEST_SECONDS)
    assert (agent.returncode, out, err) == (0, "cleaned up\n", "")
    assert beats > 3, "heartbeats go on while the park is not answered"
    assert len(gateway.bodies("heartbeat")) <= beats + 1, "and stop after it; one may have been on its way"


def test_a_fence_met_by_a_heartbeat_during_a_park_ends_the_process_after_it(gateway: ScriptedGateway) -> None:
    fence_during_a_park(gateway, READY)
    code, out, err = gateway.run("""
        run = Run.attach()
        run.park()
        time.sleep(600)
        print("still here")
    """)
    assert (code, out, err) == (1, "", "dalsegno: FENCED: because\n")
    assert len(gateway.bodies("park")) == 2


def test_a_fenced_park_ends_the_process(gateway: ScriptedGateway) -> None:
    gateway.script["park"] = [problem(409, "FENCED")]
    assert gateway.run("Run.attach().park()") == (1, "", "dalsegno: FENCED: because\n")


def test_an_unsettled_call_of_an_earlier_attempt_postpones_the_park_of_a_check(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(suspend=True)]
    gateway.script["park"] = [UNSETTLED]
    gateway.script["calls/turn-1/claim"] = [claimed("uncertain")]
    code, out, err = gateway.run("""
        run = Run.attach(heartbeat=False)
        run.check()
        try:
            run.call("turn-1", policy="probe", tool=print)
        except Uncertain:
            run.check()
        try:
            run.park()
        except Refused as refused:
            print(refused.code, run.suspending)
    """)
    assert (code, out, err) == (0, "UNSETTLED_CALLS True\n", "")
    assert len({*gateway.bodies("park")}) == 3, "each park has its own id"


@pytest.mark.parametrize(("policy", "out"), [("ask", "UNSETTLED_CALLS\n"), ("retrySameKey", "goes on\n")])
def test_an_open_call_of_this_process_is_an_error_of_a_check(gateway: ScriptedGateway, policy: str, out: str) -> None:
    gateway.script["attach"] = [attached(suspend=True)]
    gateway.script["park"] = [UNSETTLED]
    gateway.script["calls/turn-1/claim"] = [claimed("go")]
    agent = f"""
        run = Run.attach(heartbeat=False)
        try:
            run.call("turn-1", policy="{policy}", tool=lambda *_: 1 / 0)
        except ZeroDivisionError:
            pass
        try:
            run.check()
            print("goes on")
        except Refused as refused:
            print(refused.code)
    """
    assert gateway.run(agent) == (0, out, "")
