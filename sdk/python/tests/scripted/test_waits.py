"""Waits: an agent that waits for a person, a time, a message or a rate limit holds no pod meanwhile."""

import json
from typing import Any

import pytest

from scripted_gateway import HEAD, NO_ANSWER, Answer, ScriptedGateway, attached, claimed, committed, ok, problem

PARKED, READY = Answer(200, {"result": "parked"}), Answer(200, {"result": "ready"})
APPROVED = {"outcome": "approved", "at": "2026-11-26T12:00:00Z", "by": "ann", "reason": "it is cheap"}
ELAPSED = {"outcome": "elapsed", "at": "2026-11-26T12:00:00Z"}


def wait(kind: str = "approval", answer: dict[str, Any] | None = None, id: str = "w1") -> dict[str, Any]:
    answered = {"state": "answered", "answer": answer} if answer else {"state": "open"}
    return {"id": id, "kind": kind, "openedAt": "2026-11-26T11:00:00Z", **answered}


def body(gateway: ScriptedGateway, path: str) -> Any:
    return json.loads(gateway.bodies(path)[0])


ASK = """
    run = Run.attach(heartbeat=False)
    proposal = {{"order": 7, "cents": 500}}
    answer = run.approval("w1", proposal, title="Buy it?", summary="It is cheap", expires=60.5 {more})
    print(answer.granted, answer.by, answer.reason)
"""


def test_an_approval_that_is_open_parks_the_process_and_exits_with_0(gateway: ScriptedGateway) -> None:
    gateway.script["waits/w1"] = [NO_ANSWER, Answer(200, wait())]
    gateway.script["park"] = [PARKED]
    assert gateway.run(ASK.format(more="")) == (0, "", "")
    first, second = gateway.bodies("waits/w1")
    assert first == second
    asked = {"title": "Buy it?", "summary": "It is cheap", "proposal": {"order": 7, "cents": 500}, "deadlineSeconds": 61}
    assert json.loads(first) == {"kind": "approval", **asked}
    park = body(gateway, "park")
    assert (park["on"], park["mode"]) == (["w1"], "all")


def test_nothing_newer_than_the_oldest_gateway_is_sent(gateway: ScriptedGateway) -> None:
    # A gateway of the version before does not say its version.
    old = attached()
    del old.body["contract"]
    gateway.script["attach"] = [old, old, attached(contract=1), attached()]
    gateway.script["waits/w1"] = [Answer(200, wait(answer=APPROVED))]
    code, out, err = gateway.run(ASK.format(more=""))
    assert (code, out) == (0, "True ann it is cheap\n") and "waits until every gateway is of a version that has it" in err
    assert [path for path, *_ in gateway.seen] == ["attach"] * 4 + ["waits/w1"]
    assert {bearer for path, bearer, _ in gateway.seen if path == "attach"} == {"Bearer pod-token"}
    assert len(set(gateway.bodies("attach"))) == 1


def test_an_approval_that_is_answered_returns_its_answer_in_a_later_attempt(gateway: ScriptedGateway) -> None:
    gateway.script["waits/w1"] = [Answer(200, wait(answer=APPROVED))]
    assert gateway.run(ASK.format(more="")) == (0, "True ann it is cheap\n", "")


def test_an_answer_that_comes_while_the_process_parks_is_read_and_returned(gateway: ScriptedGateway) -> None:
    gateway.script["waits/w1"] = [Answer(200, wait())]
    gateway.script["park"] = [READY]
    gateway.script["waits/w1?seconds=0"] = [Answer(200, wait(answer=APPROVED))]
    assert gateway.run(ASK.format(more="")) == (0, "True ann it is cheap\n", "")


def test_a_process_that_holds_its_pod_waits_for_the_answer_before_it_parks(gateway: ScriptedGateway) -> None:
    gateway.script["waits/w1"] = [Answer(200, wait())]
    gateway.script["waits/w1?seconds=20"] = [Answer(200, wait()), Answer(200, wait(answer=APPROVED))]
    assert gateway.run(ASK.format(more=", linger=60")) == (0, "True ann it is cheap\n", "")
    assert len(gateway.bodies("waits/w1?seconds=20")) == 2 and "park" not in gateway.script


def test_a_process_that_is_asked_to_leave_while_it_holds_its_pod_parks_at_once(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(suspend=True)]
    gateway.script["waits/w1"] = [Answer(200, wait())]
    gateway.script["park"] = [PARKED]
    assert gateway.run(ASK.format(more=", linger=60")) == (0, "", "")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"outcome": "approved"}, "True False None"),
        ({"outcome": "changed", "changes": {"cents": 400}}, "True False {'cents': 400}"),
        ({"outcome": "denied", "reason": "no", "later": "field"}, "False False None"),
        ({"outcome": "timedOut"}, "False True None"),
    ],
)
def test_an_answer_says_whether_to_go_on(gateway: ScriptedGateway, answer: dict[str, Any], says: str) -> None:
    gateway.script["waits/w1"] = [Answer(200, wait(answer={"at": "2026-11-26T12:00:00Z", **answer}))]
    code, out, err = gateway.run("""
        answer = Run.attach().approval("w1", 7, title="Buy it?", on_timeout="Answer")
        print(answer.granted, answer.timed_out, answer.changes)
    """)
    assert (code, out, err) == (0, f"{says}\n", "")
    assert body(gateway, "waits/w1") == {"kind": "approval", "title": "Buy it?", "proposal": 7, "onTimeout": "Answer"}


def test_a_wait_that_was_opened_with_another_proposal_is_refused(gateway: ScriptedGateway) -> None:
    gateway.script["waits/w1"] = [problem(400, "INVALID")]
    code, _, err = gateway.run("Run.attach().approval('w1', 8, title='Buy it?')")
    assert code == 1 and "dalsegno.Refused: ('INVALID', 'waits/*: because')" in err


SLEEP = """
    from datetime import datetime, timezone
    run = Run.attach(heartbeat=False)
    print(run.sleep("w1", datetime(2026, 11, 26, 12, tzinfo=timezone.utc)).outcome)
"""


def test_a_process_sleeps_without_its_pod(gateway: ScriptedGateway) -> None:
    gateway.script["waits/w1"] = [Answer(200, wait("until"))]
    gateway.script["park"] = [PARKED]
    assert gateway.run(SLEEP) == (0, "", "")
    assert body(gateway, "waits/w1") == {"kind": "until", "time": "2026-11-26T12:00:00Z"}


def test_the_time_that_was_given_first_stays(gateway: ScriptedGateway) -> None:
    gateway.script["waits/w1"] = [problem(400, "INVALID")]
    gateway.script["waits/w1?seconds=0"] = [Answer(200, wait("until", ELAPSED))]
    assert gateway.run(SLEEP) == (0, "elapsed\n", "")


@pytest.mark.parametrize("first", [Answer(200, wait("approval", APPROVED)), problem(404, "NO_SUCH_WAIT")])
def test_a_wait_of_another_kind_is_not_taken_for_a_time(gateway: ScriptedGateway, first: Answer) -> None:
    gateway.script["waits/w1"] = [problem(400, "INVALID")]
    gateway.script["waits/w1?seconds=0"] = [first]
    code, _, err = gateway.run(SLEEP)
    assert code == 1 and "'INVALID'" in err


def test_a_time_without_a_time_zone_is_an_error(gateway: ScriptedGateway) -> None:
    code, _, err = gateway.run("""
        from datetime import datetime
        Run.attach().sleep("w1", datetime(2026, 11, 26))
    """)
    assert code == 1 and "ValueError: a time needs its time zone" in err


def test_a_rate_limit_parks_until_the_provider_accepts_again(gateway: ScriptedGateway) -> None:
    gateway.script["waits/model-1-1"] = [Answer(200, wait("rateLimit", id="model-1-1"))]
    gateway.script["park"] = [PARKED]
    code, out, err = gateway.run("""
        from datetime import datetime, timedelta, timezone
        run, reset = Run.attach(), datetime(2026, 11, 26, 13, tzinfo=timezone(timedelta(hours=1)))
        run.rate_limit("anthropic", id=f"model-{run.next_turn}-{run.attempt}", reset_time=reset)
    """)
    assert (code, out, err) == (0, "", "")
    asked = {"kind": "rateLimit", "provider": "anthropic", "resetTime": "2026-11-26T12:00:00Z"}
    assert body(gateway, "waits/model-1-1") == asked


def test_a_wait_with_a_strange_id_is_percent_encoded(gateway: ScriptedGateway) -> None:
    gateway.script["waits/a%20%2F%3F"] = [problem(400, "INVALID")]
    code, _, err = gateway.run("Run.attach().wait('a /?', 'message')")
    assert code == 1 and "'waits/*: because'" in err


def test_a_process_may_park_on_any_of_several_waits(gateway: ScriptedGateway) -> None:
    gateway.script["waits/w1"] = [Answer(200, wait())]
    gateway.script["waits/w2"] = [Answer(200, wait("until", id="w2"))]
    gateway.script["park"] = [READY, PARKED]
    code, out, err = gateway.run("""
        from datetime import datetime, timedelta, timezone
        run = Run.attach()
        waits = [
            run.wait("w1", "approval", title="Buy it?", proposal=7, expires=timedelta(hours=1)),
            run.wait("w2", "until", time=datetime.now(timezone.utc) + timedelta(days=1)),
        ]
        ids = [wait.id for wait in waits if wait.answer is None]
        print(sorted(run.waits) == ids, run.park(ids, mode="any"), run.park(on=ids))
    """)
    assert (code, out, err) == (0, "True False True\n", "")
    any_of, all_of = [json.loads(text) for text in gateway.bodies("park")]
    assert [(it["on"], it["mode"]) for it in (any_of, all_of)] == [(["w1", "w2"], "any"), (["w1", "w2"], "all")]
    assert body(gateway, "waits/w1")["deadlineSeconds"] == 3600


def test_a_park_on_waits_that_are_answered_leaves_a_suspend_to_be_parked(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(suspend=True)]
    gateway.script["park"] = [READY]
    code, out, err = gateway.run("""
        run = Run.attach(heartbeat=False)
        print(run.park(["w1"]), run.suspending, run.park(), run.suspending)
    """)
    assert (code, out, err) == (0, "False True False False\n", "")


def test_a_boundary_that_parks_exits_with_0(gateway: ScriptedGateway) -> None:
    gateway.script["turns/1"] = [committed(1)]
    code, out, err = gateway.run("""
        Run.attach().commit(1, state="asked", park=["w1", "w2"], mode="any")
        print("goes on")
    """)
    assert (code, out, err) == (0, "", "")
    park = body(gateway, "turns/1")["outcome"]["park"]
    assert (park.pop("on"), park.pop("mode"), len(park.pop("parkId")), park) == (["w1", "w2"], "any", 36, {})


FENCED = Answer(409, {"type": "about:blank", "status": 409, "code": "FENCED", "detail": "because", "committed": True})


def test_a_boundary_that_parked_and_whose_answer_was_lost_exits_with_0(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(heartbeatSeconds=0.05)]
    gateway.script["heartbeat"] = [ok(), problem(409, "FENCED").but(until=lambda: gateway.bodies("turns/1"))]
    late = problem(503, "UNAVAILABLE").but(until=lambda: gateway.beats_since("attach") > 3)
    gateway.script["turns/1"] = [NO_ANSWER, late, FENCED]
    code, out, err = gateway.run("""
        try:
            Run.attach().commit(1, state="asked", park=["w1"])
        finally:
            time.sleep(0.2)
            print("cleaned up")
    """)
    assert (code, out, err) == (0, "cleaned up\n", "")
    assert len(gateway.bodies("turns/1")) == 3 and len({*gateway.bodies("turns/1")}) == 1


@pytest.mark.parametrize(("park", "refusal"), [(True, problem(409, "FENCED")), (False, FENCED)])
def test_a_boundary_that_did_not_park_is_fenced(gateway: ScriptedGateway, park: bool, refusal: Answer) -> None:
    gateway.script["turns/1"] = [refusal]
    more = ", park=['w1']" if park else ""
    assert gateway.run(f"Run.attach().commit(1, state=1{more})") == (1, "", "dalsegno: FENCED: because\n")


def test_a_boundary_whose_park_is_refused_is_an_error_and_the_attempt_goes_on(gateway: ScriptedGateway) -> None:
    gateway.script["turns/1"] = [problem(409, "UNSETTLED_CALLS"), committed(1)]
    code, out, err = gateway.run("""
        run = Run.attach()
        try:
            run.commit(1, park=["w1"])
        except Refused as refused:
            print(refused.code, run.next_turn)
        run.commit(1)
        print(run.next_turn)
    """)
    assert (code, out, err) == (0, "UNSETTLED_CALLS 1\n2\n", "")


def test_the_next_attempt_knows_its_waits_and_judges_again_before_it_goes_on(gateway: ScriptedGateway) -> None:
    waits = [wait(answer=APPROVED), {**wait("message", id="w2"), "proposalHash": "sha256:00"}]
    gateway.script["attach"] = [attached(decision="resume", branch=1, head=HEAD, state={}, waits=waits)]
    code, out, err = gateway.run("""
        def judge(run, answers):
            print("judges", run.next_turn, [*answers], answers["w1"].by)
        run = Run.attach(on_resume=judge)
        print(run.branch, run.waits["w1"].answer.outcome, run.waits["w2"].kind, run.waits["w2"].answer)
    """)
    assert (code, out, err) == (0, "judges 2 ['w1'] ann\n1 approved message None\n", "")


@pytest.mark.parametrize(("more", "out"), [({}, ""), ({"waits": [wait()]}, "{}\n"), ({"head": HEAD}, "{}\n")])
def test_a_fresh_run_has_nothing_to_judge_again(gateway: ScriptedGateway, more: dict[str, Any], out: str) -> None:
    gateway.script["attach"] = [attached(**more, state={})]
    assert gateway.run("Run.attach(on_resume=lambda run, answers: print(answers))") == (0, out, "")


def test_a_call_that_an_approval_allows_names_it(gateway: ScriptedGateway) -> None:
    gateway.script["calls/turn-1/claim"] = [claimed("go")]
    gateway.script["calls/turn-1/complete"] = [ok()]
    code, out, err = gateway.run("""
        run = Run.attach()
        print(run.call("turn-1", policy="retrySameKey", tool=lambda key, _: key, approval="w1"))
    """)
    assert (code, out, err) == (0, "k1\n", "")
    assert body(gateway, "calls/turn-1/claim")["approval"] == "w1"


@pytest.mark.parametrize("code", ["APPROVAL_NOT_GRANTED", "APPROVAL_SPENT"])
def test_a_call_that_no_approval_allows_runs_no_tool_and_may_be_made_later(gateway: ScriptedGateway, code: str) -> None:
    gateway.script["calls/turn-1/claim"] = [problem(409, code), claimed("done", "completed", result="paid")]
    status, out, err = gateway.run("""
        run = Run.attach()
        for approval in "w1", "w2":
            try:
                print(run.call("turn-1", policy="ask", tool=lambda *_: print("ran"), approval=approval))
            except Refused as refused:
                print(refused.code)
    """)
    assert (status, out, err) == (0, f"{code}\npaid\n", "")
    first, second = [json.loads(text) for text in gateway.bodies("calls/turn-1/claim")]
    assert first["claimId"] != second["claimId"] and second["approval"] == "w2"
