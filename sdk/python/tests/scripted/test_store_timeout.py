"""A store that stays away: the process leaves, and its run is not charged."""

import json
from pathlib import Path

import pytest

from scripted_gateway import (
    LONGEST_SECONDS, NO_ANSWER, Answer, ScriptedGateway, attached, committed, ok, problem
)

SKIPS = """
    # A sleep takes no time, but the clock goes on by it. At the end the agent says how long it has slept.
    import atexit
    now, slept = time.monotonic, []
    time.sleep, time.monotonic = slept.append, lambda: now() + sum(slept)
    atexit.register(lambda: print(sum(slept)))
"""

AGENT = """
    import dalsegno
    with dalsegno.attach({options}) as run:
        run.commit(1, state=1)
"""


@pytest.mark.parametrize("options", ["store_timeout=100", ""])
def test_a_process_leaves_when_the_store_is_away_for_too_long(
    gateway: ScriptedGateway, tmp_path: Path, options: str
) -> None:
    log = tmp_path / "log"
    log.touch()
    gateway.env["DALSEGNO_TERMINATION_LOG"] = str(log)
    gateway.env["DALSEGNO_STORE_TIMEOUT_SECONDS"] = "6000" if options else "100"
    gateway.script["turns/1"] = [NO_ANSWER, problem(503, "UNAVAILABLE")]
    code, out, err = gateway.run(SKIPS + AGENT.format(options=options))
    assert code == 1 and 100 - LONGEST_SECONDS < float(out) <= 100
    assert all("turns/1: no answer yet (503)" in line for line in err.splitlines()), err
    word = json.loads(log.read_text())
    assert (word["class"], word["message"]) == ("disruption", "turns/1: no answer within the store's timeout (503)")


def test_a_try_takes_no_longer_than_the_timeout(gateway: ScriptedGateway) -> None:
    gateway.script["turns/1"] = [committed(1).but(seconds=600)]
    # The timeout is set after the attach, which may take longer on a busy machine.
    code, out, err = gateway.run("""
        with attach(store_timeout=60) as run:
            run._transport._store_timeout = 1
            began = time.monotonic()
            try:
                run.commit(1, state=1)
            finally:
                print(time.monotonic() - began)
    """)
    assert code == 1 and "Traceback" not in err and gateway.bodies("turns/1")
    assert float(out) < 25, "a try without a timeout takes up to 30 s"


def test_a_pause_that_the_gateway_asks_for_is_no_longer_than_the_timeout(gateway: ScriptedGateway) -> None:
    gateway.script["turns/1"] = [problem(503, "UNAVAILABLE", Retry_After="6000")]
    code, out, _ = gateway.run(SKIPS + AGENT.format(options="store_timeout=30"))
    assert code == 1 and float(out) <= 30 and len(gateway.bodies("turns/1")) == 2


def test_the_wait_for_newer_gateways_does_not_count(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(contract=1)] * 40 + [attached()]
    gateway.script["inbox?after=0"] = [NO_ANSWER, ok(messages=[])]
    code, out, err = gateway.run(SKIPS + """
    run = attach(store_timeout=30)
    print(run.read_inbox())
    """)
    assert (code, out) == (0, "[]\n39.0\n") and "waits until every gateway" in err


def test_a_gateway_that_waits_for_an_answer_is_not_away(gateway: ScriptedGateway) -> None:
    wait = {"id": "w", "kind": "approval", "state": "open", "openedAt": "2026-01-01T00:00:00Z"}
    answered = {**wait, "state": "answered", "answer": {"outcome": "approved", "at": "2026-01-01T00:00:00Z"}}
    gateway.script["waits/w"] = [ok(**wait)]
    gateway.script["waits/w?seconds=20"] = [NO_ANSWER, Answer(200, answered, seconds=5)]
    code, out, err = gateway.run("""
        run = attach(store_timeout=4)
        print(run.approval("w", 1, title="Buy?", linger=30).granted)
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
