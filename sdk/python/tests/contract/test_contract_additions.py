"""What version 3 of the contract added."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract_gateways import ContractGateway, batch, boundary, claim, put, uid


@pytest.fixture
def newer(contract: ContractGateway) -> ContractGateway:
    """A gateway whose process is attached. Skips the test where the gateway has an older contract."""
    if (version := contract.attach()["contract"]) < 3:
        pytest.skip(f"this gateway has version {version} of the contract, and the test is about version 3")
    return contract


def keys_of(page: dict[str, Any]) -> list[str]:
    return [record["key"] for record in page["records"]]


def test_records_are_read_in_both_orders_and_without_their_values(newer: ContractGateway) -> None:
    names = ["a", "b/1", "b/2", "b/3", "c", "ä"]
    assert newer.said("records", batch(*map(put, reversed(names)))) == "ok"
    for order, expected in ("asc", names), ("desc", names[::-1]):
        for only in "false", "true":
            path = f"records?space=s&prefix=&order={order}&keysOnly={only}&limit=4"
            _, first = newer.get(path)
            _, rest = newer.get(f"{path}&after={first['next'].replace('ä', '%C3%A4')}")
            assert keys_of(first) + keys_of(rest) == expected and "next" not in rest
            assert all(("value" in it) == (only == "false") for it in first["records"])
    assert keys_of(newer.get("records?space=s&prefix=b/&order=desc&limit=2")[1]) == ["b/3", "b/2"]
    def append(entry: str) -> dict[str, Any]:
        return {"append": {"space": "t", "key": "log", "entryId": entry, "value": {"json": entry}}}

    assert newer.said("records", batch(append("e1"), append("e2"), append("e3"))) == "ok"
    _, first = newer.get("records?space=t&order=desc&limit=2")
    _, rest = newer.get(f"records?space=t&order=desc&limit=2&after={first['next']}")
    assert [it["entryId"] for it in first["records"] + rest["records"]] == ["e3", "e2", "e1"] and "next" not in rest
    assert newer.get("records?space=t&keysOnly=true")[1] == {"records": [{"key": "log"}]}
    for query, allowed in ("order=up", ("asc", "desc")), ("keysOnly=1", ("true", "false")):
        status, refused = newer.get(f"records?space=s&{query}")
        assert (status, refused["code"]) == (400, "INVALID") and all(it in refused["detail"] for it in allowed)


def test_records_are_read_by_their_keys(newer: ContractGateway) -> None:
    def append(entry: str) -> dict[str, Any]:
        return {"append": {"space": "s", "key": "log", "entryId": entry, "value": {"json": entry}}}

    newer.said("records", batch(put("a", 1), put("b", 2), append("e1"), append("e2")))
    _, answer = newer.post("records/read", {"space": "s", "keys": ["log", "none", "a"]})
    assert answer == {
        "records": [
            {"key": "log", "entryId": "e1", "value": {"json": "e1"}, "turn": 1},
            {"key": "log", "entryId": "e2", "value": {"json": "e2"}, "turn": 1},
            {"key": "a", "value": {"json": 1}, "turn": 1},
        ]
    }
    for number in range(3):
        large = {"json": f"{number}" * (3 << 20)}
        long = {"append": {"space": "s", "key": "long", "entryId": f"l{number}", "value": large}}
        assert newer.said("records", batch(long)) == "ok"
    wanted: dict[str, Any] = {"space": "s", "keys": ["b", "long", "none", "a"]}
    pages = [newer.post("records/read", wanted)[1]]
    while "next" in pages[-1]:
        pages.append(newer.post("records/read", {**wanted, "after": pages[-1]["next"]})[1])
    found = [(it["key"], it.get("entryId")) for page in pages for it in page["records"]]
    assert found == [("b", None), ("long", "l0"), ("long", "l1"), ("long", "l2"), ("a", None)]
    assert len(pages) > 1, "a page ends within a key"
    for bad in (
        {"space": "s", "keys": "a"},
        {"space": "s", "keys": []},
        {"space": "s", "keys": ["a", "a"]},
        {"space": "s", "keys": [f"k{number}" for number in range(1_001)]},
        {"space": "s", "keys": ["a\x01"]},
        {"space": "s", "keys": ["a"], "after": "1.b"},
        {"space": "s", "keys": ["a"], "after": "a"},
        {"space": "s"},
        {"keys": ["a"]},
    ):
        assert newer.said("records/read", bad) == "INVALID", bad
    assert newer.post("records/read", {"space": "s", "keys": ["a"]}, bearer="x" * 43)[1]["code"] == "FENCED"


def test_a_prefix_is_deleted_in_the_order_of_the_operations(newer: ContractGateway) -> None:
    def delete(prefix: str, space: str = "s") -> dict[str, Any]:
        return {"deletePrefix": {"space": space, "prefix": prefix}}

    other = {"put": {"space": "t", "key": "b/1", "value": {"json": 1}}}
    assert newer.said("records", batch(put("a"), put("b"), put("b/1"), put("b/2"), other)) == "ok"
    written = json.dumps(batch(delete("b/"), put("b/3"), delete("none"))).encode()
    assert [newer.said("records", raw=written) for _ in range(2)] == ["ok", "duplicate"]
    assert keys_of(newer.get("records?space=s")[1]) == ["a", "b", "b/3"]
    assert keys_of(newer.get("records?space=t")[1]) == ["b/1"]
    assert newer.said("turns/1", boundary(records=[put("b/4"), delete("b")])) == "ok"
    assert keys_of(newer.get("records?space=s")[1]) == ["a"]
    for bad in delete(""), delete("a\x01"), {"deletePrefix": {"space": "s", "key": "a"}}:
        assert newer.said("records", batch(put("c"), bad)) == "INVALID"
    newer.restart()
    assert keys_of(newer.get("records?space=s")[1]) == ["a"]


def test_a_call_says_by_which_tool_it_is_made(newer: ContractGateway) -> None:
    first = claim(tool="pay")
    assert newer.post("calls/a/claim", first)[1]["call"]["tool"] == "pay"
    assert [call.get("tool") for call in newer.restart()["unsettledCalls"]] == ["pay"]
    again = {"claimId": uid(), "policy": "retrySameKey"}
    assert newer.post("calls/a/claim", again)[1]["call"]["tool"] == "pay"
    assert newer.post("calls/a/claim", {**again, "tool": "other"})[1]["call"]["tool"] == "pay"
    newer.said("calls/a/complete", {"claimId": again["claimId"], "outcome": "completed"})
    assert [call.get("tool") for call in newer.restart()["completedCalls"]] == ["pay"]
    assert newer.post("calls/a/claim", claim())[1]["call"]["tool"] == "pay"
    assert "tool" not in newer.post("calls/b/claim", claim(key="k2"))[1]["call"]
    newer.restart()
    assert newer.post("calls/b/claim", claim(key="k2", tool="send a mail/ä"))[1]["call"]["tool"] == "send a mail/ä"
    for bad in "", "x" * 129, "a\x07", 1:
        assert newer.said("calls/c/claim", claim(key="k3", tool=bad)) == "INVALID", bad


def test_what_a_call_spent_counts_once_and_at_once(newer: ContractGateway) -> None:
    spent = {"tokensIn": 7, "tokensOut": 5, "toolCalls": 1, "costMicroUSD": 9}
    first = claim()
    newer.said("calls/a/claim", first)
    done = {"claimId": first["claimId"], "outcome": "completed", "result": 1}
    for bad in {"tokens": 1}, {"tokensIn": -1}, None:
        assert newer.said("calls/a/complete", {**done, "usage": bad}) == "INVALID", bad
    assert newer.said("calls/a/complete", {**done, "usage": spent}) == "ok"
    for more in {"usage": spent}, {"usage": {"tokensIn": 1}}, {}:
        assert newer.said("calls/a/complete", {**done, **more}) == "duplicate"
    assert newer.usage() == spent
    refused = claim(key="k2")
    newer.said("calls/b/claim", refused)
    ended = {"claimId": refused["claimId"], "outcome": "failed", "usage": {"costMicroUSD": 1}}
    assert newer.said("calls/b/complete", ended) == "ok"
    assert newer.said("turns/1", boundary(usage={"tokensIn": 1})) == "ok"
    assert newer.usage() == {**spent, "tokensIn": 8, "costMicroUSD": 10}
