"""The contract, on the gateway in memory and on a real one: what an agent's tests rely on is what it meets later."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from contract_gateways import ContractGateway, approval, boundary, claim, uid


def test_attach_says_where_to_begin(contract: ContractGateway) -> None:
    answer = contract.attach()
    assert (answer["attempt"], answer["decision"], answer["branch"]) == (1, "fresh", 0)
    assert answer["contract"] >= 2
    assert not {"head", "state"} & {*answer}
    assert [answer[name] for name in ("unsettledCalls", "completedCalls", "waits", "warnings")] == [[], [], [], []]
    assert {"suspend", "cancel", "limit", "inbox", "heartbeatSeconds", "leaseSeconds"} <= {*answer}


def test_attaching_again_with_the_same_secret_is_the_same_and_with_another_one_spends_the_attempt(
    contract: ContractGateway,
) -> None:
    first = contract.attach()
    assert contract.post("attach", {"instance": contract.instance}, bearer=contract.token) == (200, first)
    status, refused = contract.post("attach", {"instance": "x" * 43}, bearer=contract.token)
    assert (status, refused["code"]) == (409, "ATTEMPT_SPENT")
    contract.await_fence()
    assert contract.post("attach", {"instance": contract.instance}, bearer=contract.token)[1]["code"] == "FENCED"


def test_an_instance_has_256_bits(contract: ContractGateway) -> None:
    for instance in "", "x" * 42, "x" * 42 + "!":
        assert contract.post("attach", {"instance": instance}, bearer=contract.token)[1]["code"] == "INVALID"


def test_a_turn_is_committed_once_and_the_next_attempt_finds_it(contract: ContractGateway) -> None:
    contract.attach()
    turn = json.dumps(boundary(events=[{"said": "a"}, 2])).encode()
    status, answer = contract.post("turns/1", raw=turn)
    assert (status, answer["result"], answer["head"]["turn"], answer["head"]["position"]) == (200, "ok", 1, 2)
    assert contract.said("turns/1", raw=turn) == "duplicate"
    assert contract.said("turns/1", boundary()) == contract.said("turns/3", boundary()) == "CONFLICT"
    old = contract.instance
    resumed = contract.restart()
    assert (resumed["attempt"], resumed["decision"], resumed["head"]) == (2, "resume", answer["head"])
    assert resumed["state"] == {"state": {"value": {"json": {"n": 1}}}}
    status, fenced = contract.post("turns/2", boundary(), bearer=old)
    assert (status, fenced["code"], fenced["committed"]) == (409, "FENCED", False)
    status, events = contract.get("events?turn=1")
    assert [event["event"] for event in events["events"]] == [{"said": "a"}, 2]


def test_a_plan_comes_before_its_result(contract: ContractGateway) -> None:
    contract.attach()
    call = {"id": "pay", "policy": "probe", "key": "k1", "arguments": {"cents": 5}}
    assert contract.said("turns/1/plan", boundary(calls=[call])) == "ok"
    assert contract.said("turns/1/plan", boundary()) == "CONFLICT"
    _, answer = contract.post("calls/pay/claim", {"claimId": uid(), "policy": "probe"})
    assert (answer["verdict"], answer["call"]["arguments"], answer["call"]["key"]) == ("go", {"cents": 5}, "k1")
    assert contract.said("turns/1", boundary()) == "UNSETTLED_CALLS"
    assert contract.said("turns/1", boundary(openCalls=["pay"])) == "ok"
    assert contract.restart()["head"]["boundary"] == "result"


def test_channels_are_set_appended_truncated_and_removed(contract: ContractGateway) -> None:
    contract.attach()
    first = {"set": {"goal": {"json": 6}, "draft": {"json": 0}}, "append": {"log": [{"json": n} for n in range(3)]}}
    assert contract.said("turns/1", {"commitId": uid(), "channels": first}) == "ok"
    second = {"remove": ["draft"], "truncate": {"log": 1}, "append": {"log": [{"json": "new"}]}}
    assert contract.said("turns/2", {"commitId": uid(), "channels": second}) == "ok"
    expected = {"goal": {"value": {"json": 6}}, "log": {"list": [{"json": 0}, {"json": "new"}]}}
    assert contract.get("state")[1]["state"] == contract.restart()["state"] == expected
    assert contract.get("state?turn=1")[1]["state"]["draft"] == {"value": {"json": 0}}
    assert contract.get("state?turn=9")[1]["code"] == "NOT_FOUND"


def test_a_number_that_is_no_json_comes_back_as_bytes_in_a_state_and_is_refused_elsewhere(
    contract: ContractGateway,
) -> None:
    contract.attach()
    assert contract.said("turns/1", boundary(state={"loss": float("nan")})) == "ok"
    assert contract.get("state")[1]["state"]["state"]["value"]["bytes"]["mediaType"] == "application/json5"
    assert contract.said("turns/2", boundary(events=[float("nan")])) == "INVALID"
    assert contract.said("calls/a/claim", claim(arguments=float("inf"))) == "INVALID"


@pytest.mark.parametrize(("policy", "again"), [("retrySameKey", "go"), ("readOnly", "go"), ("probe", "uncertain")])
def test_an_unknown_outcome_is_treated_by_its_policy(contract: ContractGateway, policy: str, again: str) -> None:
    contract.attach()
    same = claim(policy, arguments=[1])
    assert contract.said("calls/a/claim", same) == contract.said("calls/a/claim", same) == "go"
    assert contract.said("calls/a/claim", claim(policy)) == "uncertain"
    unsettled = contract.restart()["unsettledCalls"]
    assert [(call["id"], call["state"], call["arguments"], call["turn"]) for call in unsettled] == [
        ("a", "started", [1], 1)
    ]
    blocks = "ok" if policy == "readOnly" else "UNSETTLED_CALLS"
    put = {"put": {"space": "s", "key": "k", "value": {"json": 1}}}
    assert contract.said("records", {"batchId": uid(), "operations": [put]}) == blocks
    assert contract.said("calls/a/claim", {"claimId": uid(), "policy": policy}) == again
    if again == "go":
        assert contract.said("records", {"batchId": uid(), "operations": [put]}) == "ok"
        assert contract.said("turns/1", boundary()) == "ok"
    else:
        assert contract.said("turns/1", boundary()) == "UNSETTLED_CALLS"
        settled = {"outcome": "completed", "reason": "found", "result": 7}
        assert contract.said("calls/a/settle", settled) == "ok"
        assert contract.said("calls/a/settle", settled) == "duplicate"
        assert contract.said("turns/1", boundary()) == "ok"


def test_a_call_that_is_over_is_done_for_ever(contract: ContractGateway) -> None:
    contract.attach()
    first = claim(arguments={"a": 1, "b": 2})
    done = {"claimId": first["claimId"], "outcome": "completed", "result": {"receipt": 7}}
    assert contract.said("calls/a/claim", first) == "go"
    assert contract.said("calls/a/complete", {**done, "claimId": uid()}) == "CONFLICT"
    assert contract.said("calls/a/complete", done) == "ok"
    assert contract.said("calls/a/complete", done) == "duplicate"
    assert contract.said("calls/a/complete", {**done, "result": 8}) == "CONFLICT"
    assert contract.said("calls/a/complete", {**done, "claimId": uid()}) == "duplicate", "it is known by its result"
    assert [call["id"] for call in contract.restart()["completedCalls"]] == ["a"]
    assert contract.said("turns/1", boundary()) == "ok"
    assert contract.restart()["completedCalls"] == []
    _, answer = contract.post("calls/a/claim", claim(arguments={"b": 2, "a": 1}))
    assert (answer["verdict"], answer["call"]["state"], answer["call"]["result"]) == (
        "done",
        "completed",
        {"receipt": 7},
    )


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize(
    ("other", "detail"),
    [({"arguments": 2}, "other arguments"), ({"key": "k2"}, "another key"), ({"policy": "readOnly"}, "another policy")],
)
def test_what_was_stored_first_stays(contract: ContractGateway, over: bool, other: dict[str, Any], detail: str) -> None:
    contract.attach()
    first = claim(arguments=1)
    contract.said("calls/a/claim", first)
    if over:
        contract.said("calls/a/complete", {"claimId": first["claimId"], "outcome": "failed"})
    status, refused = contract.post("calls/a/claim", claim(**{"arguments": 1, **other}))
    assert (status, refused["code"]) == (400, "INVALID")
    assert refused["detail"].startswith(f'call "a" has {detail}'), "the SDK knows a divergence by these words"


def test_a_refused_key_stops_everything(contract: ContractGateway) -> None:
    contract.attach()
    first = claim()
    contract.said("calls/a/claim", first)
    assert (
        contract.said("calls/a/complete", {"claimId": first["claimId"], "outcome": "keyRefused", "result": 422}) == "ok"
    )
    assert contract.said("turns/1", boundary()) == "UNSETTLED_CALLS"
    _, answer = contract.post("calls/a/claim", first)
    assert (answer["verdict"], answer["call"]["state"], answer["call"]["result"]) == ("uncertain", "keyRefused", 422)
    assert contract.said("calls/a/settle", {"outcome": "completed", "reason": "x"}) == "CONFLICT"


def test_what_does_not_follow_the_contract_is_invalid(contract: ContractGateway) -> None:
    contract.attach()
    assert contract.said("turns/1", boundary(unknown=1)) == "INVALID"
    assert contract.said("turns/1", {"state": 1}) == "INVALID"
    assert contract.said("turns/1", raw=b"no json") == "INVALID"
    assert contract.said("calls/a/claim", {"claimId": uid(), "policy": "readOnly"}) == "INVALID"
    assert contract.said("calls/a%20b/claim", claim()) == "INVALID"
    assert contract.said("calls/a/claim", claim("never")) == "INVALID"
    assert contract.said("calls/none/complete", {"claimId": uid(), "outcome": "completed"}) == "NOT_FOUND"
    assert contract.said("nothing") == "NOT_FOUND"


def test_records_are_written_once_and_read_by_key(contract: ContractGateway) -> None:
    contract.attach()
    value = {"json": {"n": 1}}
    operations = [
        {"append": {"space": "s", "key": "log", "entryId": "e1", "value": {"json": 1}}},
        {"append": {"space": "s", "key": "log", "entryId": "e2", "value": {"json": 2}}},
        {"append": {"space": "s", "key": "log", "entryId": "e1", "value": {"json": 3}}},
        {"put": {"space": "s", "key": "a", "value": value}},
        {"putIfAbsent": {"space": "s", "key": "a", "value": {"json": 2}}},
        {"put": {"space": "s", "key": "ä", "value": value}},
        {"put": {"space": "t", "key": "z", "value": value}},
        {"put": {"space": "s", "key": "gone", "value": value}},
        {"delete": {"space": "s", "key": "gone"}},
    ]
    batch = {"batchId": uid(), "operations": operations}
    assert contract.said("records", batch) == "ok"
    assert contract.said("records", batch) == "duplicate"
    assert contract.said("records", {**batch, "operations": operations[:1]}) == "CONFLICT"
    _, page = contract.get("records?space=s&prefix=&limit=2")
    assert [(it["key"], it.get("entryId"), it["value"], it["turn"]) for it in page["records"]] == [
        ("a", None, value, 1),
        ("log", "e1", {"json": 1}, 1),
    ]
    _, rest = contract.get(f"records?space=s&prefix=&after={page['next'].replace('ä', '%C3%A4')}")
    assert [it["key"] for it in rest["records"]] == ["log", "ä"] and "next" not in rest
    assert contract.get("records?space=s&prefix=lo")[1]["records"][1]["entryId"] == "e2"
    with_turn = boundary(records=[{"delete": {"space": "s", "key": "log"}}])
    assert contract.said("turns/1", with_turn) == "ok"
    assert contract.get("records?space=s&prefix=lo")[1]["records"] == []


def test_a_batch_with_a_bad_operation_changes_nothing(contract: ContractGateway) -> None:
    contract.attach()
    put = {"put": {"space": "s", "key": "k", "value": {"json": 1}}}
    for bad in (
        {"put": {"space": "s", "key": "k"}},
        {"move": {"space": "s", "key": "k"}},
        {"delete": {"space": "", "key": "k"}},
    ):
        assert contract.said("records", {"batchId": uid(), "operations": [put, bad]}) == "INVALID"
    assert contract.get("records?space=s&prefix=")[1]["records"] == []


def test_a_wait_is_opened_once_and_the_clock_answers_a_time(contract: ContractGateway) -> None:
    contract.attach()
    ask = {"kind": "approval", "title": "Pay", "proposal": {"cents": 5}}
    status, wait = contract.post("waits/pay", ask)
    assert (status, wait["id"], wait["kind"], wait["state"]) == (200, "pay", "approval", "open")
    assert wait["proposalHash"].startswith("sha256:") and "openedAt" in wait
    assert contract.post("waits/pay", ask) == (200, wait)
    assert contract.said("waits/pay", {**ask, "title": "Pay more"}) == "INVALID"
    assert contract.said("waits/x", {"kind": "approval", "title": "Pay"}) == "INVALID"
    past = (datetime.now(timezone.utc) - timedelta(seconds=5)).isoformat().replace("+00:00", "Z")
    contract.post("waits/then", {"kind": "until", "time": past})
    _, answered = contract.get("waits/then?seconds=20")
    assert (answered["state"], answered["answer"]["outcome"]) == ("answered", "elapsed")
    assert contract.get("waits/none")[1]["code"] == "NO_SUCH_WAIT"
    waits = {wait["id"]: wait["state"] for wait in contract.restart()["waits"]}
    assert waits == {"pay": "open", "then": "answered"}


def test_an_approval_that_nobody_granted_allows_no_call(contract: ContractGateway) -> None:
    contract.attach()
    contract.post("waits/pay", approval())
    assert contract.said("calls/a/claim", claim(approval="pay")) == "APPROVAL_NOT_GRANTED"
    assert contract.said("calls/a/claim", claim(approval="none")) == "APPROVAL_NOT_GRANTED"
    assert contract.restart()["unsettledCalls"] == []


def test_a_park_ends_the_attempt_unless_there_is_nothing_to_wait_for(contract: ContractGateway) -> None:
    contract.attach()
    contract.post("waits/pay", approval())
    assert contract.said("park", {"parkId": uid()}) == "ready"
    assert contract.said("park", {"parkId": uid(), "on": ["none"]}) == "NO_SUCH_WAIT"
    opened = claim("probe")
    contract.said("calls/a/claim", opened)
    park = {"parkId": uid(), "on": ["pay"]}
    assert contract.said("park", park) == "UNSETTLED_CALLS"
    contract.said("calls/a/complete", {"claimId": opened["claimId"], "outcome": "completed"})
    assert contract.said("park", park) == "parked"
    assert contract.said("park", park) == "parked"
    assert contract.said("turns/1", boundary()) == "FENCED"
    assert contract.said("heartbeat") == "FENCED"


def test_a_boundary_may_park(contract: ContractGateway) -> None:
    contract.attach()
    contract.post("waits/pay", approval())
    turn = json.dumps(boundary(outcome={"park": {"parkId": uid(), "on": ["pay"]}})).encode()
    assert contract.said("turns/1", raw=turn) == "parked"
    status, fenced = contract.post("turns/1", raw=turn)
    assert (status, fenced["code"], fenced["committed"]) == (409, "FENCED", True)


def test_a_finish_is_the_end(contract: ContractGateway) -> None:
    contract.attach()
    finish = json.dumps({"commitId": uid(), "finish": {"outcome": "succeeded", "output": 1}}).encode()
    assert contract.said("finish", raw=finish) == "ok"
    assert contract.said("finish", raw=finish) == "duplicate"
    assert contract.said("turns/1", boundary()) == "FINISHED"
    assert contract.said("calls/a/claim", claim()) == "FINISHED"
    assert contract.said("heartbeat") == "FINISHED"
    assert contract.said("park", {"parkId": uid()}) == "FINISHED"


def test_a_boundary_may_finish(contract: ContractGateway) -> None:
    contract.attach()
    turn = json.dumps(boundary(outcome={"finish": {"outcome": "failed", "reason": "Stuck"}})).encode()
    assert contract.said("turns/1", raw=turn) == "ok"
    assert contract.said("turns/1", raw=turn) == "duplicate"
    assert contract.said("turns/2", boundary()) == "FINISHED"


def test_nobody_cancelled_it(contract: ContractGateway) -> None:
    contract.attach()
    assert contract.said("cancelled") == "CONFLICT"
    assert contract.get("inbox")[1] == {"messages": []}
    assert contract.said("turns/1", boundary(inbox=[1])) == "INVALID"


def test_a_stranger_is_fenced(contract: ContractGateway) -> None:
    contract.attach()
    for path in "heartbeat", "park":
        status, refused = contract.post(path, {"parkId": uid()} if path == "park" else None, bearer="x" * 43)
        assert (status, refused["code"]) == (409, "FENCED")


def test_a_person_approves_a_message_comes_and_a_suspend_is_parked(contract: ContractGateway) -> None:
    contract.attach()
    contract.post("waits/pay", approval())
    contract.post("waits/word", {"kind": "message", "topic": "price"})
    assert contract.said("park", {"parkId": uid(), "on": ["pay", "word"], "mode": "any"}) == "parked"
    contract.approve("pay", "PO 7")
    resumed = contract.restart()
    waits = {wait["id"]: wait.get("answer", {}) for wait in resumed["waits"]}
    assert (waits["pay"]["outcome"], waits["pay"]["reason"], waits["word"]) == ("approved", "PO 7", {})
    assert contract.said("calls/a/claim", claim(approval="pay")) == "go"
    assert contract.said("calls/b/claim", {**claim(approval="pay"), "key": "k2"}) == "APPROVAL_SPENT"
    contract.send("5 euro", "price")
    _, word = contract.get("waits/word?seconds=20")
    assert (word["answer"]["outcome"], word["answer"]["position"]) == ("message", 1)
    _, inbox = contract.get("inbox")
    assert [(it["position"], it["topic"], it["value"]) for it in inbox["messages"]] == [(1, "price", "5 euro")]
    contract.suspend()
    contract.await_flag("suspend")
    status, answer = contract.post("turns/1", boundary(inbox=[1]))
    assert (status, answer["inbox"], answer["suspend"]) == (200, 1, True)
    assert contract.get("inbox")[1]["messages"] == []
    assert contract.said("turns/2", boundary(inbox=[1])) == "INVALID"
    assert contract.said("park", {"parkId": uid()}) == "parked"


def test_a_value_of_a_record_has_at_most_4_mib_with_its_quotes(contract: ContractGateway) -> None:
    contract.attach()

    def put(length: int) -> str:
        operation = {"put": {"space": "s", "key": "k", "value": {"json": "x" * (length - 2)}}}
        return contract.said("records", {"batchId": uid(), "operations": [operation]})

    assert (put(4 << 20), put((4 << 20) + 1)) == ("ok", "TOO_LARGE")
