"""Waits, messages and deadlines, at the gateway in memory and at a real one."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

from contract_gateways import ContractGateway, approval, boundary, uid


def rfc3339(seconds: float) -> str:
    """A time so many seconds from now."""
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def seconds_between(first: str, second: str) -> float:
    parsed = [datetime.fromisoformat(text[:19] + "+00:00") for text in (first, second)]
    return (parsed[1] - parsed[0]).total_seconds()


def test_a_deadline_answers_a_wait_and_holds_no_run_that_is_not_parked_on_it(contract: ContractGateway) -> None:
    contract.attach()
    for how in "Answer", "Hold", "Fail":
        wait = {"kind": "message", "topic": how, "deadlineSeconds": 1, "onTimeout": how}
        assert contract.post(f"waits/{how}", wait)[1]["state"] == "open"
    _, wait = contract.get("waits/Answer?seconds=20")
    assert (wait["state"], wait["answer"]["outcome"]) == ("answered", "timedOut")
    assert seconds_between(wait["openedAt"], wait["deadline"]) in (0, 1, 2)
    assert contract.said("turns/1", boundary()) == "ok"
    assert [contract.get(f"waits/{how}?seconds=0")[1]["state"] for how in ("Hold", "Fail")] == ["open", "open"]
    contract.send("late", "Hold")
    assert contract.get("waits/Hold?seconds=20")[1]["answer"]["outcome"] == "message"


def test_a_deadline_holds_a_run_that_is_parked_on_its_wait_until_an_answer(contract: ContractGateway) -> None:
    contract.attach()
    contract.post("waits/word", {"kind": "message", "topic": "a", "deadlineSeconds": 1, "onTimeout": "Hold"})
    assert contract.said("park", {"parkId": uid(), "on": ["word"]}) == "parked"
    assert contract.await_no_pod() == "held"
    contract.send("at last", "a")
    contract.next_attempt()
    waits = contract.attach()["waits"]
    assert [(wait["id"], wait["answer"]["outcome"]) for wait in waits] == [("word", "message")]


def test_a_deadline_fails_a_run_that_is_parked_on_its_wait(contract: ContractGateway) -> None:
    contract.attach()
    contract.post("waits/word", {"kind": "message", "topic": "a", "deadlineSeconds": 1, "onTimeout": "Fail"})
    assert contract.said("park", {"parkId": uid(), "on": ["word"]}) == "parked"
    assert contract.await_no_pod() == "failed: WaitTimedOut"


def test_the_end_of_a_rate_limit_is_known_guessed_or_bounded(contract: ContractGateway) -> None:
    contract.attach()

    def opened(id: str, **more: str) -> tuple[str, str]:
        """When it was opened, and when the run wakes."""
        _, wait = contract.post(f"waits/{id}", {"kind": "rateLimit", "provider": f"of.{id}", **more})
        assert wait["state"] == "open", wait
        return wait["openedAt"], wait["wakeTime"]

    assert 59 <= seconds_between(*opened("unknown")) <= 62
    assert 86_399 <= seconds_between(*opened("far", resetTime=rfc3339(7 * 86_400))) <= 86_402
    reset = rfc3339(101)
    _, wake = opened("soon", resetTime=reset)
    assert 0 <= seconds_between(reset, wake) <= 2
    contract.post("waits/over", {"kind": "rateLimit", "provider": "of.over", "resetTime": rfc3339(-9)})
    assert contract.get("waits/over?seconds=20")[1]["answer"]["outcome"] == "elapsed"


def test_64_waits_may_be_open(contract: ContractGateway) -> None:
    contract.attach()
    for number in range(64):
        assert contract.said(f"waits/w{number}", {"kind": "message", "topic": f"t{number}"}) == "open"
    assert contract.said("waits/w64", approval()) == "TOO_MANY_WAITS"
    assert contract.said("waits/w7", {"kind": "message", "topic": "t7"}) == "open", "one that is open already"
    contract.send("free", "t7")
    assert contract.get("waits/w7?seconds=20")[1]["state"] == "answered"
    assert contract.said("waits/w64", approval()) == "open"


def test_a_message_that_is_there_answers_a_wait_that_is_opened_later(contract: ContractGateway) -> None:
    contract.attach()
    for value, topic in ("one", "a"), ("two", "b"), ("three", "b"):
        contract.send(value, topic)
    for position, of_topic in (2, {"topic": "b"}), (3, {"topic": "b"}), (1, {}):
        _, wait = contract.post(f"waits/w{position}", {"kind": "message", **of_topic})
        answer = wait["answer"]
        assert (wait["state"], answer["outcome"], answer["position"]) == ("answered", "message", position)
    assert contract.said("waits/w4", {"kind": "message", "topic": "b"}) == "open", "no message answers two waits"
    assert contract.said("turns/1", boundary(inbox=[1, 2])) == "ok"
    _, page = contract.get("inbox?limit=1")
    assert [message["position"] for message in page["messages"]] == [3] and "next" not in page
    assert contract.get("inbox?after=3")[1] == {"messages": []}


def test_the_same_wait_may_be_written_in_another_way(contract: ContractGateway) -> None:
    contract.attach()
    first = contract.post("waits/pay", raw=b'{"kind":"approval","title":"Pay","proposal":1}')
    assert first[0] == 200
    assert contract.said("waits/pay", raw=b'{"kind":"approval","title":"Pay","proposal":1,"summary":null}') == "INVALID"
    assert contract.said("waits/pay", raw=b'{"kind": "approval", "title": "Pay", "proposal": 1}') == "INVALID"


def test_waits_that_were_answered_since_the_head_are_told_at_attach(contract: ContractGateway) -> None:
    contract.attach()
    contract.post("waits/pay", approval())
    contract.approve("pay", "PO 7")
    assert contract.said("turns/1/plan", boundary()) == "ok"
    contract.post("waits/then", {"kind": "until", "time": rfc3339(-5)})
    assert [wait["id"] for wait in contract.restart()["waits"]] == ["then"]
    time.sleep(0.01)
    assert contract.said("turns/1", boundary()) == "ok"
    assert contract.restart()["waits"] == []
    assert contract.get("waits/pay?seconds=0")[1]["answer"]["outcome"] == "approved"
