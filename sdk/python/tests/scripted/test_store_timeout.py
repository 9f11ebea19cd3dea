"""A store that stays away: the process leaves, and its run is not charged."""

import json
import time
from pathlib import Path

import pytest

from scripted_gateway import NO_ANSWER, Answer, ScriptedGateway, attached, committed, ok, problem

AGENT = """
    import dalsegno
    with dalsegno.attach({options}) as run:
        run.commit(1, state=1)
"""


@pytest.mark.parametrize("options", ["store_timeout=0.5", ""])
def test_a_process_leaves_when_the_store_is_away_for_too_long(gateway: ScriptedGateway, tmp_path: Path, options: str) -> None:
    log = tmp_path / "log"
    log.touch()
    gateway.env |= {"DALSEGNO_TERMINATION_LOG": str(log), "DALSEGNO_STORE_TIMEOUT_SECONDS": "60" if options else "1"}
    gateway.script["turns/1"] = [NO_ANSWER, problem(503, "UNAVAILABLE")]
    code, out, err = gateway.run(AGENT.format(options=options))
    assert (code, out, err) == (1, "", "")
    word = json.loads(log.read_text())
    assert (word["class"], word["message"]) == ("disruption", "turns/1: no answer within the store's timeout (503)")


def test_a_try_takes_no_longer_than_the_timeout(gateway: ScriptedGateway) -> None:
    gateway.script["turns/1"] = [Answer(200, committed(1).body, seconds=25)]
    began = time.monotonic()
    code, _, err = gateway.run(AGENT.format(options="store_timeout=1"))
    assert code == 1 and "Traceback" not in err and time.monotonic() - began < 15


def test_a_pause_that_the_gateway_asks_for_is_no_longer_than_the_timeout(gateway: ScriptedGateway) -> None:
    gateway.script["turns/1"] = [problem(503, "UNAVAILABLE", Retry_After="25")]
    began = time.monotonic()
    assert gateway.run(AGENT.format(options="store_timeout=1"))[0] == 1
    assert time.monotonic() - began < 15 and len(gateway.bodies("turns/1")) == 2


def test_the_wait_for_newer_gateways_does_not_count(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(contract=1)] * 4 + [attached()]
    gateway.script["inbox?after=0"] = [NO_ANSWER, ok(messages=[])]
    code, out, err = gateway.run("""
        run = attach(store_timeout=1)
        print(run.read_inbox())
    """)
    assert (code, out) == (0, "[]\n") and "waits until every gateway" in err


def test_a_gateway_that_waits_for_an_answer_is_not_away(gateway: ScriptedGateway) -> None:
    wait = {"id": "w", "kind": "approval", "state": "open", "openedAt": "2026-01-01T00:00:00Z"}
    answered = {**wait, "state": "answered", "answer": {"outcome": "approved", "at": "2026-01-01T00:00:00Z"}}
    gateway.script["waits/w"] = [ok(**wait)]
    gateway.script["waits/w?seconds=4"] = [NO_ANSWER, Answer(200, answered, seconds=2)]
    code, out, err = gateway.run("""
        run = attach(store_timeout=1)
        print(run.approval("w", 1, title="Buy?", linger=4).granted)
    """)
    assert (code, out, err) == (0, "True\n", "")


@pytest.mark.parametrize("value", ["0", "-1"])
def test_an_argument_that_is_no_number_of_seconds_is_an_error_at_once(gateway: ScriptedGateway, value: str) -> None:
    code, _, err = gateway.run(AGENT.format(options=f"store_timeout={value}"))
    assert code == 1 and "ValueError: store_timeout: a number of seconds above 0" in err
    assert gateway.bodies("attach") == []


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "30s"])
def test_a_deadline_that_is_no_number_of_seconds_is_an_error_at_once(gateway: ScriptedGateway, value: str) -> None:
    gateway.env["DALSEGNO_STORE_TIMEOUT_SECONDS"] = value
    code, _, err = gateway.run(AGENT.format(options=""))
    assert code == 1 and "ValueError: DALSEGNO_STORE_TIMEOUT_SECONDS must be" in err
    assert gateway.bodies("attach") == []
