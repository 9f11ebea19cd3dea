"""A rewind, at the gateway in memory. `dalsegno dev` cannot rewind a run; tests of the store have its rules."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from contract_gateways import MemoryWorker, approval, batch, boundary, claim, put


@pytest.fixture
def worker() -> Iterator[MemoryWorker]:
    worker = MemoryWorker()
    worker.attach()
    yield worker
    worker.close()


def test_a_rewind_brings_back_the_state_the_head_and_the_position_of_no_event(worker: MemoryWorker) -> None:
    first = json.dumps(boundary(state=1, events=["a"])).encode()
    _, committed = worker.post("turns/1", raw=first)
    worker.post("turns/2", boundary(state=2, events=["b", "c"], usage={"tokensIn": 5}))
    worker.post("turns/3/plan", boundary(state=3))
    worker.gateway.rewind(1)
    assert worker.said("heartbeat") == "FENCED"
    resumed = worker.restart()
    assert (resumed["attempt"], resumed["branch"], resumed["decision"]) == (2, 1, "resume")
    assert resumed["head"] == {**committed["head"], "position": 3}, "positions of events never decrease"
    assert resumed["state"] == {"state": {"value": {"json": 1}}}
    assert worker.get("state?turn=2")[1]["code"] == "NOT_FOUND"
    assert worker.said("turns/1", raw=first) == "duplicate"
    assert worker.said("turns/3", boundary()) == "CONFLICT"
    assert worker.post("turns/2", boundary(events=["d"]))[1]["head"]["position"] == 4
    events = worker.get("events?turn=1")[1]["events"]
    assert [(event["position"], event["event"]) for event in events] == [(1, "a"), (4, "d")]
    assert worker.gateway.rows.usage == {"tokensIn": 5}, "what is spent is spent"


def test_a_rewind_brings_back_records_that_were_replaced_or_deleted(worker: MemoryWorker) -> None:
    def held() -> dict[str, list[object]]:
        found: dict[str, list[object]] = {}
        for record in worker.get("records?space=s")[1]["records"]:
            found.setdefault(record["key"], []).append(record["value"]["json"])
        return found

    def append(entry: str) -> dict[str, object]:
        return {"append": {"space": "s", "key": "log", "entryId": entry, "value": {"json": entry}}}

    assert worker.said("records", batch(put("a", 1), put("b", 1), append("e1"))) == "ok"
    worker.post("turns/1", boundary(records=[put("b", 2)]))
    undone = json.dumps(batch(put("a", 3), put("new"), {"delete": {"space": "s", "key": "b"}}, append("e2"))).encode()
    assert worker.said("records", raw=undone) == "ok"
    worker.post("turns/2", boundary(records=[put("b", 4)]))
    worker.gateway.rewind(1)
    worker.restart()
    assert held() == {"a": [1], "b": [2], "log": ["e1"]}
    assert worker.said("records", raw=undone) == "ok", "the batch was undone, so it is no duplicate"
    assert held() == {"a": [3], "new": [1], "log": ["e1", "e2"]}


def test_a_rewind_undoes_waits_gives_messages_back_and_leaves_calls_as_they_are(worker: MemoryWorker) -> None:
    worker.post("waits/early", approval())
    worker.approve("early", "PO 7")
    worker.send("hello", "a")
    worker.post("turns/1", boundary())
    worker.post("waits/late", approval())
    first = claim("probe")
    worker.post("calls/a/claim", first)
    worker.post("calls/a/complete", {"claimId": first["claimId"], "outcome": "completed", "result": 7})
    worker.post("turns/2", boundary(inbox=[1]))
    worker.post("calls/b/claim", claim("probe", key="k2"))
    worker.gateway.rewind(1)
    resumed = worker.restart()
    assert [wait["id"] for wait in resumed["waits"]] == [], "that of turn 1 was answered before the head"
    assert worker.get("waits/early?seconds=0")[1]["state"] == "answered"
    assert worker.get("waits/late?seconds=0")[1]["code"] == "NO_SUCH_WAIT"
    assert worker.said("waits/late", approval(title="Pay again")) == "open"
    assert [message["position"] for message in worker.get("inbox")[1]["messages"]] == [1]
    assert resumed["completedCalls"] == [], "turn 2 was undone, so nobody has to make its calls again"
    assert [call["id"] for call in resumed["unsettledCalls"]] == ["b"]
    assert worker.said("calls/a/claim", claim("probe")) == "done"
    assert worker.said("turns/2", boundary()) == "UNSETTLED_CALLS"


def test_a_rewind_wakes_a_run_that_is_parked(worker: MemoryWorker) -> None:
    worker.post("turns/1", boundary())
    worker.post("waits/pay", approval())
    assert worker.said("park", {"parkId": "5b9e3d1c-0201-4000-8000-000000000000", "on": ["pay"]}) == "parked"
    assert "pay" in worker.gateway.why_no_process
    worker.gateway.rewind(1)
    assert worker.restart()["waits"] == []


def test_a_turn_that_was_not_committed_is_no_end_of_a_rewind(worker: MemoryWorker) -> None:
    worker.post("turns/1", boundary())
    with pytest.raises(ValueError, match="turn 2 is not committed"):
        worker.gateway.rewind(2)
    assert worker.said("heartbeat") == "ok", "nothing was rewound"
