"""What a gateway refuses, in memory and a real one: what passes an agent's tests passes later."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract_gateways import ContractGateway, approval, batch, boundary, claim, put, uid


def op(kind: str, **fields: Any) -> dict[str, Any]:
    return batch({kind: {"space": "s", "key": "k", **fields}})


BOUNDARIES: dict[str, dict[str, Any]] = {
    "a trigger with a blank": boundary(trigger="Oh No"),
    "a trigger that begins with a capital": boundary(trigger="Done"),
    "no trigger": boundary(trigger=""),
    "a field of `usage` that is unknown": boundary(usage={"tokens": 1}),
    "usage below 0": boundary(usage={"tokensIn": -1}),
    "usage as a text": boundary(usage={"tokensIn": "1"}),
    "usage as a fraction": boundary(usage={"toolCalls": 0.5}),
    "usage as null": boundary(usage=None),
    "usage as a truth value": boundary(usage={"toolCalls": True}),
    "more usage than there can be": boundary(usage={"costMicroUSD": 2**40 + 1}),
    "a trigger that is too long": boundary(trigger="x" * 129),
    "a list as null": boundary(events=None),
    "open calls as null": boundary(openCalls=None),
    "records as an object": boundary(records={}),
    "a message at the position 0": boundary(inbox=[0]),
    "a message twice": boundary(inbox=[1, 1]),
    "a commit id that is no UUID": boundary(commitId="1"),
    "state and channels": boundary(channels={"set": {"a": {"json": 1}}}),
    "an outcome that is unknown": boundary(outcome={"stop": {}}),
    "a finish whose reason has a blank": boundary(outcome={"finish": {"outcome": "failed", "reason": "no money"}}),
    "a finish whose reason has a blank behind a capital": boundary(
        outcome={"finish": {"outcome": "failed", "reason": "No money"}}
    ),
    "a finish whose message is too long": boundary(outcome={"finish": {"outcome": "failed", "message": "x" * 1025}}),
    "a finish whose reason is small": boundary(outcome={"finish": {"outcome": "failed", "reason": "money"}}),
    "a finish with another outcome": boundary(outcome={"finish": {"outcome": "done"}}),
    "a finish with a number for a message": boundary(outcome={"finish": {"outcome": "failed", "message": 1}}),
    "a park whose id is no UUID": boundary(outcome={"park": {"parkId": "1"}}),
    "a channel's name with a blank": {"commitId": uid(), "channels": {"set": {"a b": {"json": 1}}}},
    "a channel that is set and appended to": {
        "commitId": uid(),
        "channels": {"set": {"a": {"json": 1}}, "append": {"a": []}},
    },
    "a channel that is removed and truncated": {"commitId": uid(), "channels": {"remove": ["a"], "truncate": {"a": 1}}},
    "a channel that is truncated below 0": {"commitId": uid(), "channels": {"truncate": {"a": -1}}},
    "bytes that are no base64": {
        "commitId": uid(),
        "channels": {"set": {"a": {"bytes": {"mediaType": "a/b", "base64": "a"}}}},
    },
    "bytes without a media type": {"commitId": uid(), "channels": {"set": {"a": {"bytes": {"base64": "AAAA"}}}}},
    "calls in a result": boundary(calls=[{"id": "a", "policy": "probe", "key": "k"}]),
}

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "a wait's id with a blank": ("waits/buy%20nails", approval()),
    "a wait's id that is too long": (f"waits/{'a' * 129}", approval()),
    "a timeout that is unknown": ("waits/a", approval(onTimeout="hold")),
    "a deadline at once": ("waits/a", approval(deadlineSeconds=0)),
    "a deadline as a text": ("waits/a", approval(deadlineSeconds="1")),
    "a deadline as a fraction": ("waits/a", approval(deadlineSeconds=1.5)),
    "a title with a control character": ("waits/a", approval(title="Pay\x07")),
    "a title that is too long": ("waits/a", approval(title="x" * 129)),
    "a proposal that is no JSON": ("waits/a", approval(proposal=float("nan"))),
    "no title": ("waits/a", approval(title="")),
    "a number as a title": ("waits/a", approval(title=1)),
    "a long summary": ("waits/a", approval(summary="x" * 2049)),
    "a field of another kind": ("waits/a", approval(topic="a")),
    "a topic with a blank": ("waits/a", {"kind": "message", "topic": "a b"}),
    "no provider": ("waits/a", {"kind": "rateLimit", "provider": ""}),
    "a reset that is no time": ("waits/a", {"kind": "rateLimit", "provider": "p", "resetTime": "soon"}),
    "a time that is none": ("waits/a", {"kind": "until", "time": "tomorrow"}),
    "a time without a zone": ("waits/a", {"kind": "until", "time": "2030-01-31T09:00:00"}),
    "a record's key with a control character": ("records", op("put", key="a\x01", value={"json": 1})),
    "a record's key with a later control character": ("records", op("delete", key="a\x85")),
    "a record's space with a control character": ("records", op("delete", space="a\x7f")),
    "an entry's id with a line break": ("records", op("append", entryId="a\n", value={"json": 1})),
    "a record's key that is too long": ("records", op("put", key="k" * 513, value={"json": 1})),
    "a record's value of two kinds": (
        "records",
        op("put", value={"json": 1, "bytes": {"mediaType": "a/b", "base64": "AAAA"}}),
    ),
    "a record's key as a number": ("records", op("delete", key=1)),
    "a record's value that is no payload": ("records", op("put", value=1)),
    "no operations": ("records", batch()),
    "a batch id that is no UUID": ("records", {**op("delete"), "batchId": "1"}),
    "a call's id with a blank": ("calls/a%20b/complete", {"claimId": uid(), "outcome": "completed"}),
    "a settled call's id with a blank": ("calls/a%20b/settle", {"reason": "x", "outcome": "completed"}),
    "a claim id that is no UUID": ("calls/a/claim", claim(claimId="1")),
    "an empty key": ("calls/a/claim", claim(key="")),
    "a call's key that is too long": ("calls/a/claim", claim(key="k" * 257)),
    "a key with a control character": ("calls/a/claim", claim(key="a\tb")),
    "no approval": ("calls/a/claim", claim(approval="")),
    "an outcome of a call that is unknown": ("calls/a/complete", {"claimId": uid(), "outcome": "done"}),
    "no reason": ("calls/a/settle", {"outcome": "completed", "reason": ""}),
    "a settled call's outcome that is unknown": ("calls/a/settle", {"outcome": "keyRefused", "reason": "x"}),
    "a plan with a call twice": (
        "turns/1/plan",
        boundary(calls=[{"id": "a", "policy": "probe", "key": "k"}, {"id": "a", "policy": "probe", "key": "k"}]),
    ),
    "a plan with a call's id with a blank": (
        "turns/1/plan",
        boundary(calls=[{"id": "a b", "policy": "probe", "key": "k"}]),
    ),
    "a park on a wait twice": ("park", {"parkId": uid(), "on": ["a", "a"]}),
    "a park on 65 waits": ("park", {"parkId": uid(), "on": [f"w{n}" for n in range(65)]}),
    "a park on a wait's id with a blank": ("park", {"parkId": uid(), "on": ["a b"]}),
    "a park on null": ("park", {"parkId": uid(), "on": None}),
    "a park's mode that is unknown": ("park", {"parkId": uid(), "mode": "some"}),
    "a park id that is no UUID": ("park", {"parkId": "1"}),
    "a finish whose reason has a blank": (
        "finish",
        {"commitId": uid(), "finish": {"outcome": "failed", "reason": "no money"}},
    ),
    "a finish whose commit id is no UUID": ("finish", {"commitId": "1", "finish": {"outcome": "failed"}}),
    "a finish whose output is no JSON": (
        "finish",
        {"commitId": uid(), "finish": {"outcome": "failed", "output": float("nan")}},
    ),
}

QUERIES = {
    "records of no space": "records",
    "a page of records that begins nowhere": "records?space=s&after=x",
    "a page of no records": "records?space=s&limit=0",
    "a parameter that is unknown": "records?space=s&sort=key",
    "a page of no messages": "inbox?limit=0",
    "a wait's id with a blank": "waits/buy%20nails?seconds=0",
    "a number of seconds that is none": "waits/a?seconds=x",
    "a turn that is none": "state?turn=0",
}


def test_what_the_contract_does_not_allow_is_invalid(contract: ContractGateway) -> None:
    contract.attach()
    requests = {**{what: ("turns/1", body) for what, body in BOUNDARIES.items()}, **OTHERS}
    answers = {what: contract.said(path, body) for what, (path, body) in requests.items()}
    answers |= {path: str(contract.get(path)[1].get("code", "ok")) for path in QUERIES.values()}
    assert {what: said for what, said in answers.items() if said != "INVALID"} == {}
    assert contract.said("turns/1", boundary()) == "ok", "nothing of them was stored"
    assert contract.restart()["waits"] == [], "nor here"


def test_names_and_words_that_are_allowed(contract: ContractGateway) -> None:
    contract.attach()
    long = "x" * 128
    records = [put("k" * 512), put("a b/ä+"), {"delete": {"space": "s", "key": "none"}}]
    usage = {"tokensIn": 1, "tokensOut": 2, "toolCalls": 3, "costMicroUSD": 4}
    for number, trigger in enumerate(("TURN_END", "SUSPENSION", "invoice.checked_1-2", None), start=1):
        more = {"trigger": trigger, "usage": usage, "records": records, "channels": None, "outcome": None}
        assert contract.said(f"turns/{number}", boundary(**more)) == "ok"
    assert contract.usage() == {name: 4 * amount for name, amount in usage.items()}
    assert contract.said(f"waits/{long}", approval(onTimeout="Hold", deadlineSeconds=1_000_000_000)) == "open"
    assert contract.said("waits/a:b_c.d-1", {"kind": "message", "topic": "a:b", "onTimeout": "Fail"}) == "open"
    assert contract.said(f"calls/{long}/claim", claim(key="ä" * 256)) == "go"
    finish = {"outcome": "failed", "reason": "NoMoney2", "message": "a\x07b", "output": None}
    assert contract.said("finish", {"commitId": uid(), "finish": finish}) == "ok"


def test_a_claim_of_a_call_that_is_over_needs_its_approval_too(contract: ContractGateway) -> None:
    contract.attach()
    for id in "pay", "other":
        contract.post(f"waits/{id}", approval())
    first = claim()
    contract.said("calls/a/claim", first)
    contract.said("calls/a/complete", {"claimId": first["claimId"], "outcome": "completed"})
    assert contract.said("calls/a/claim", claim(approval="pay")) == "APPROVAL_NOT_GRANTED"
    contract.approve("pay", "PO 7")
    contract.approve("other", "PO 8")
    assert contract.said("calls/a/claim", claim(approval="pay")) == "done"
    assert contract.said("calls/b/claim", claim("probe", key="k2", approval="pay")) == "go", "`a` did not use it"
    assert contract.said("calls/a/claim", claim(approval="pay")) == "APPROVAL_SPENT"
    assert contract.said("calls/b/claim", claim("probe", key="k2", approval="other")) == "uncertain"
    assert contract.said("calls/c/claim", claim("probe", key="k3", approval="other")) == "go", "`b` did not use it"


def test_open_calls_come_before_a_wait_that_does_not_exist(contract: ContractGateway) -> None:
    contract.attach()
    contract.said("calls/a/claim", claim("probe"))
    assert contract.said("park", {"parkId": uid(), "on": ["none"]}) == "UNSETTLED_CALLS"
    park = {"park": {"parkId": uid(), "on": ["none"]}}
    assert contract.said("turns/1", boundary(openCalls=["a"], outcome=park)) == "UNSETTLED_CALLS"


def test_a_boundary_that_parks_on_an_unknown_wait_is_not_committed(contract: ContractGateway) -> None:
    contract.attach()
    park = {"park": {"parkId": uid(), "on": ["none"]}}
    assert contract.said("turns/2", boundary(outcome=park)) == "CONFLICT"
    assert contract.said("turns/1", boundary(outcome=park)) == "NO_SUCH_WAIT"
    assert contract.said("turns/1", boundary()) == "ok"


def test_calls_of_the_open_turn_are_those_that_began_in_it(contract: ContractGateway) -> None:
    contract.attach()
    early, late = claim("probe"), claim("probe", key="k2")
    contract.said("calls/early/claim", early)
    assert contract.said("turns/1", boundary(openCalls=["early"])) == "ok"
    contract.said("calls/late/claim", late)
    for id, opened in ("early", early), ("late", late):
        end = {"claimId": opened["claimId"], "outcome": "completed", "result": id}
        assert contract.said(f"calls/{id}/complete", end) == "ok"
    assert [call["id"] for call in contract.restart()["completedCalls"]] == ["late"]
    assert contract.post("calls/early/claim", claim("probe"))[1]["call"]["result"] == "early"


def test_after_the_finish_a_repeat_is_still_a_duplicate(contract: ContractGateway) -> None:
    contract.attach()
    first = claim()
    contract.said("calls/a/claim", first)
    end = {"claimId": first["claimId"], "outcome": "completed", "result": 1}
    contract.said("calls/a/complete", end)
    written = json.dumps(batch(put("k"))).encode()
    assert contract.said("records", raw=written) == "ok"
    contract.post("waits/pay", approval())
    assert contract.said("finish", {"commitId": uid(), "finish": {"outcome": "succeeded"}}) == "ok"
    assert contract.said("calls/a/complete", end) == "duplicate"
    assert contract.said("calls/a/settle", {"outcome": "completed", "result": 1, "reason": "x"}) == "duplicate"
    assert contract.said("records", raw=written) == "duplicate"
    assert contract.said("calls/a/complete", {**end, "result": 2}) == "FINISHED"
    assert contract.said("calls/none/complete", end) == "FINISHED"
    assert contract.said("calls/a/settle", {"outcome": "failed", "reason": "x"}) == "FINISHED"
    assert contract.said("records", batch(put("k"))) == "FINISHED"
    assert contract.said("waits/pay", approval()) == "FINISHED"
    assert contract.said("cancelled") == "FINISHED"
    assert contract.get("waits/pay?seconds=0")[1]["state"] == "withdrawn"
    assert contract.get("records?space=s")[1]["records"][0]["key"] == "k"


def test_a_person_does_not_settle_what_the_current_attempt_may_complete(contract: ContractGateway) -> None:
    contract.attach()
    first = claim()
    contract.said("calls/a/claim", first)
    assert not contract.settle("a", "completed")
    assert contract.said("calls/a/complete", {"claimId": first["claimId"], "outcome": "failed"}) == "ok"
    contract.said("calls/b/claim", claim("probe", key="k2"))
    contract.restart()
    assert contract.settle("b", "completed")
    assert contract.said("turns/1", boundary()) == "ok"


def test_a_worker_settles_a_call_whose_claim_it_lost(contract: ContractGateway) -> None:
    contract.attach()
    contract.said("calls/a/claim", claim("probe"))
    assert contract.said("calls/a/settle", {"outcome": "completed", "reason": "found", "result": 1}) == "ok"
    assert contract.said("calls/a/settle", {"outcome": "failed", "reason": "found"}) == "CONFLICT"
    assert contract.said("turns/1", boundary()) == "ok"
    contract.said("calls/b/claim", claim("ask", key="k2"))
    assert contract.said("calls/b/settle", {"outcome": "completed", "reason": "found"}) == "CONFLICT"


def test_the_outcome_of_an_asking_call_is_for_a_person(contract: ContractGateway) -> None:
    contract.attach()
    contract.said("calls/a/claim", claim("ask", arguments=[1]))
    assert contract.said("turns/1", boundary()) == "UNSETTLED_CALLS"
    contract.lose()
    assert contract.await_no_pod() == "held"
    assert contract.settle("a", "completed")
    contract.next_attempt()
    attached = contract.attach()
    assert attached["unsettledCalls"] == [] and [call["id"] for call in attached["completedCalls"]] == ["a"]
    assert contract.said("calls/a/claim", claim("ask")) == "done"
    assert contract.said("turns/1", boundary()) == "ok"


@pytest.mark.parametrize("with_park", [False, True])
def test_a_cancel_is_acknowledged_once_and_is_the_end(contract: ContractGateway, with_park: bool) -> None:
    contract.attach()
    contract.post("waits/pay", approval())
    contract.said("calls/a/claim", claim("probe"))
    contract.cancel()
    contract.await_flag("cancel")
    ends = ("park", {"parkId": uid(), "on": ["pay"]}) if with_park else ("cancelled", None)
    if with_park:
        assert contract.said(*ends) == "UNSETTLED_CALLS"
        contract.said("calls/a/settle", {"outcome": "failed", "reason": "x"})
    said = "parked" if with_park else "ok"
    assert [contract.said(*ends), contract.said(*ends)] == [said, said]
    others: dict[str, Any] = {"turns/1": boundary(), "finish": {"commitId": uid(), "finish": {"outcome": "failed"}}}
    others |= {"calls/a/claim": claim("probe"), "records": batch(put("k")), "heartbeat": None}
    others |= {"park": {"parkId": uid()}} | ({"cancelled": None} if with_park else {})
    assert {path: contract.said(path, body) for path, body in others.items()} == dict.fromkeys(others, "FENCED")
    assert contract.get("waits/pay?seconds=0")[1]["code"] == "FENCED"
    assert contract.await_no_pod() == "cancelled: Cancelled"
