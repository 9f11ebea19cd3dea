"""Tool calls: what an agent may rely on where an effect must not happen twice."""

import json
from typing import Any

import pytest

from scripted_gateway import NO_ANSWER, Answer, ScriptedGateway, claimed, ok, problem


def test_a_new_call_runs_its_tool_with_the_stored_key(gateway: ScriptedGateway) -> None:
    gateway.script["calls/turn-1/claim"] = [claimed("go", arguments={"page": 1})]
    gateway.script["calls/turn-1/complete"] = [ok()]
    code, out, err = gateway.run("""
        run = Run.attach()
        tool = lambda key, arguments: [key, arguments["page"]]
        print(run.call("turn-1", policy="retrySameKey", arguments={"page": 1}, tool=tool))
    """)
    assert (code, out, err) == (0, "['k1', 1]\n", "")
    claim = json.loads(gateway.bodies("calls/turn-1/claim")[0])
    done = json.loads(gateway.bodies("calls/turn-1/complete")[0])
    assert (claim["policy"], claim["arguments"], claim["key"]) == ("retrySameKey", {"page": 1}, "r1:turn-1")
    assert done == {"claimId": claim["claimId"], "outcome": "completed", "result": ["k1", 1]}


def test_a_call_that_is_done_is_not_made_again(gateway: ScriptedGateway) -> None:
    gateway.script["calls/turn-1/claim"] = [claimed("done", "completed", result="stored")]
    code, out, _ = gateway.run("print(Run.attach().call('turn-1', policy='ask', tool=lambda *_: print('ran')))")
    assert (code, out) == (0, "stored\n")


def test_an_uncertain_call_is_handed_to_the_agent_which_settles_it(gateway: ScriptedGateway) -> None:
    gateway.script["calls/turn-1/claim"] = [claimed("uncertain")]
    gateway.script["calls/turn-1/settle"] = [ok()]
    code, out, _ = gateway.run("""
        run = Run.attach()
        try:
            run.call("turn-1", policy="probe", tool=lambda *_: print("ran"))
        except Uncertain as uncertain:
            run.settle("turn-1", "completed", "found by key " + uncertain.call["key"], result=7)
    """)
    assert (code, out) == (0, "")
    settled = json.loads(gateway.bodies("calls/turn-1/settle")[0])
    assert settled == {"outcome": "completed", "reason": "found by key k1", "result": 7}


def test_a_claim_that_lost_against_another_is_not_completed_by_this_process(gateway: ScriptedGateway) -> None:
    gateway.script["calls/turn-1/claim"] = [claimed("uncertain")]
    code, out, _ = gateway.run("""
        run = Run.attach()
        for _ in range(2):
            try:
                run.call("turn-1", policy="probe", tool=print)
            except Uncertain:
                print("uncertain")
        try:
            run.complete("turn-1", "completed", 7)
        except KeyError:
            print("not claimed")
    """)
    assert (code, out) == (0, "uncertain\nuncertain\nnot claimed\n")


def test_an_uncertain_call_that_nobody_catches_logs_neither_its_key_nor_its_arguments(gateway: ScriptedGateway) -> None:
    gateway.script["calls/turn-1/claim"] = [claimed("uncertain", key="key-4711", arguments={"card": "4111"})]
    code, _, err = gateway.run("""
        import copy, pickle
        try:
            Run.attach().call("turn-1", policy="probe", tool=print)
        except Uncertain as uncertain:
            for same in uncertain, copy.copy(uncertain), pickle.loads(pickle.dumps(uncertain)):
                assert same.call["key"] == "key-4711"
                print(repr(same), file=sys.stderr)
            raise
    """)
    assert code == 1 and err.count("call 'turn-1' may have taken effect") == 4
    assert "4711" not in err and "4111" not in err


def test_a_tool_that_raised_can_be_called_again_under_the_same_claim(gateway: ScriptedGateway) -> None:
    gateway.script["calls/turn-1/claim"] = [claimed("go")]
    gateway.script["calls/turn-1/complete"] = [ok()]
    code, _, err = gateway.run("""
        run, tries = Run.attach(), []
        def tool(key, _):
            tries.append(key)
            return 1 / (len(tries) - 1)
        try:
            run.call("turn-1", policy="retrySameKey", tool=tool)
        except ZeroDivisionError:
            run.call("turn-1", policy="retrySameKey", tool=tool)
    """)
    assert (code, err) == (0, "")
    first, second = gateway.bodies("calls/turn-1/claim")
    assert first == second


def test_a_claim_that_was_refused_can_be_corrected_under_the_same_id(gateway: ScriptedGateway) -> None:
    gateway.script["calls/turn-1/claim"] = [problem(400, "INVALID"), claimed("go")]
    gateway.script["calls/turn-1/complete"] = [ok()]
    code, out, err = gateway.run("""
        run = Run.attach()
        for key, page in (None, {1}), (b"k", 1), (None, float("nan")), (None, 1):
            try:
                print(run.call("turn-1", policy="retrySameKey", key=key, arguments=page, tool=lambda *_: "made"))
            except (TypeError, Refused) as error:
                print(type(error).__name__)
    """)
    assert (code, out, err) == (0, "TypeError\nTypeError\nRefused\nmade\n", "")
    refused, mended = map(json.loads, gateway.bodies("calls/turn-1/claim"))
    assert mended["arguments"] == 1 and mended["claimId"] != refused["claimId"]


def test_a_late_refusal_does_not_drop_the_claim_of_another_thread(gateway: ScriptedGateway) -> None:
    gateway.script["calls/turn-1/claim"] = [problem(400, "INVALID"), claimed("go"), problem(400, "INVALID")]
    gateway.script["calls/turn-1/complete"] = [problem(413, "TOO_LARGE"), ok()]
    code, out, err = gateway.run("""
        run = Run.attach(heartbeat=False)
        def called(page):
            try:
                run.call("turn-1", policy="ask", arguments=page, tool=lambda *_: "made")
            except Refused as error:
                print(error.code)
        transport = run._transport
        send = transport.send
        def late(*what):  # while this one is on its way, another thread mends the call
            transport.send = send
            called(float("nan"))
            called(1)
            return send(*what)
        transport.send = late
        called(float("nan"))
        run.complete("turn-1", "completed", "made")
    """)
    assert (code, out, err) == (0, "INVALID\nTOO_LARGE\nINVALID\n", "")
    bodies = gateway.bodies("calls/turn-1/claim")
    claims = [json.loads(body)["claimId"] for body in bodies]
    assert claims[0] == claims[2] != claims[1]
    assert json.loads(gateway.bodies("calls/turn-1/complete")[1])["claimId"] == claims[1]


def test_a_claim_that_the_gateway_may_have_heard_is_sent_again_as_the_same_bytes(gateway: ScriptedGateway) -> None:
    gateway.script["calls/turn-1/claim"] = [problem(503, "UNAVAILABLE"), claimed("go")]
    gateway.script["calls/turn-1/complete"] = [ok()]
    code, out, _ = gateway.run("""
        run, pages = Run.attach(heartbeat=False), [1]
        def interrupted(seconds):
            raise InterruptedError
        time.sleep = interrupted
        try:
            run.call("turn-1", policy="retrySameKey", arguments=pages, tool=print)
        except InterruptedError:
            pages.append(2)
            print(run.call("turn-1", policy="retrySameKey", arguments=[1], tool=lambda *_: "made"))
    """)
    assert (code, out) == (0, "made\n")
    first, second = gateway.bodies("calls/turn-1/claim")
    assert first == second


@pytest.mark.parametrize("policy", ["retrySameKey", "ask"])
def test_a_claim_that_a_proxy_refused_is_sent_again_as_the_same_bytes(gateway: ScriptedGateway, policy: str) -> None:
    refusals = [NO_ANSWER, Answer(403, "somebody else's"), problem(401, "UNAUTHENTICATED")]
    go = claimed("go", policy=policy)
    gateway.script["calls/turn-1/claim"] = [*refusals, go, problem(400, "INVALID"), claimed("go")]
    gateway.script["calls/turn-1/complete"] = [ok()]
    code, out, _ = gateway.run(f"""
        run = Run.attach(heartbeat=False)
        for _ in range(5):
            try:
                print(run.call("turn-1", policy="{policy}", arguments=1, tool=lambda *_: "made"))
            except Refused as error:
                print(error.code)
    """)
    assert (code, out) == (0, "HTTP_403\nUNAUTHENTICATED\nmade\nINVALID\nmade\n")
    claims = gateway.bodies("calls/turn-1/claim")
    assert len({*claims[:4]}) == 1 and len({*claims}) == 3


@pytest.mark.parametrize("policy", ["probe", "ask"])
def test_a_result_that_was_refused_can_be_completed_in_another_form_and_its_tool_runs_no_more(
    gateway: ScriptedGateway, policy: str
) -> None:
    go = claimed("go", policy=policy)
    gateway.script["calls/turn-1/claim"] = [go, Answer(403, "somebody else's"), go]
    gateway.script["calls/turn-1/complete"] = [problem(413, "TOO_LARGE"), ok()]
    code, out, err = gateway.run(f"""
        run, results = Run.attach(), ["a second time", "too long"]
        for _ in range(3):
            try:
                run.call("turn-1", policy="{policy}", tool=lambda *_: results.pop())
            except (Refused, Uncertain) as error:
                print(getattr(error, "code", "UNCERTAIN"), len(results))
        run.complete("turn-1", "completed", "short")
    """)
    assert (code, out, err) == (0, "TOO_LARGE 1\nHTTP_403 1\nUNCERTAIN 1\n", "")
    claim = json.loads(gateway.bodies("calls/turn-1/claim")[0])["claimId"]
    completed = json.loads(gateway.bodies("calls/turn-1/complete")[1])
    assert completed == {"claimId": claim, "outcome": "completed", "result": "short"}


def test_a_result_that_is_not_json_is_an_error_and_can_be_completed_afterwards(gateway: ScriptedGateway) -> None:
    gateway.script["calls/turn-1/claim"] = [claimed("go", policy="ask")]
    gateway.script["calls/turn-1/complete"] = [ok()]
    code, _, err = gateway.run("""
        run = Run.attach()
        try:
            run.call("turn-1", policy="ask", tool=lambda *_: b"receipt 7")
        except TypeError:
            run.complete("turn-1", "completed", "receipt 7")
    """)
    assert (code, err) == (0, "")
    assert json.loads(gateway.bodies("calls/turn-1/complete")[0])["result"] == "receipt 7"


@pytest.mark.parametrize(
    ("raised", "again", "outcome"),
    [
        ("CallFailed", claimed("done", "failed", result="422"), "failed"),
        ("KeyRefused", claimed("uncertain", "keyRefused", result="422"), "keyRefused"),
    ],
)
def test_what_a_tool_refused_is_recorded_and_the_tool_does_not_run_again(
    gateway: ScriptedGateway, raised: str, again: Any, outcome: str
) -> None:
    gateway.script["calls/turn-1/claim"] = [claimed("go"), again]
    gateway.script["calls/turn-1/complete"] = [ok()]
    code, out, _ = gateway.run(f"""
        run = Run.attach()
        def tool(key, _):
            print("runs")
            raise {raised}("422")
        for _ in range(2):
            try:
                run.call("turn-1", policy="retrySameKey", tool=tool)
            except {raised} as refused:
                print(refused.result)
    """)
    assert (code, out) == (0, "runs\n422\n422\n")
    assert [json.loads(body)["outcome"] for body in gateway.bodies("calls/turn-1/complete")] == [outcome]


def test_a_refused_key_is_not_a_failed_call_to_try_again_under_another_key(gateway: ScriptedGateway) -> None:
    gateway.script["calls/pay-1/claim"] = [claimed("go")]
    gateway.script["calls/pay-1/complete"] = [ok()]
    code, _, err = gateway.run("""
        run = Run.attach()
        def tool(key, _):
            raise KeyRefused("422")
        try:
            run.call("pay-1", policy="retrySameKey", tool=tool)
        except CallFailed:
            run.call("pay-2", policy="retrySameKey", tool=print)
    """)
    assert code == 1 and err.endswith("dalsegno.KeyRefused: 422\n")


def test_an_invalid_id_is_percent_encoded_and_left_for_the_gateway_to_refuse(gateway: ScriptedGateway) -> None:
    gateway.script["calls/pay%20%C3%A4%2F%0A1/claim"] = [problem(400, "INVALID")]
    gateway.script["calls/pay%3F/settle"] = [problem(400, "INVALID")]
    code, out, err = gateway.run("""
        run = Run.attach()
        for refused in (lambda: run.call("pay ä/\\n1", policy="ask", tool=print),
                        lambda: run.settle("pay?", "failed", "looked")):
            try:
                refused()
            except Refused as error:
                print(error.code)
    """)
    assert (code, out, err) == (0, "INVALID\nINVALID\n", "")
