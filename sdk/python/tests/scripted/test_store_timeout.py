"""A store that stays away: the process leaves, and its run is not charged."""

import json
from pathlib import Path

import pytest

from scripted_gateway import NO_ANSWER, ScriptedGateway, problem

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


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "30s"])
def test_a_deadline_that_is_no_number_of_seconds_is_an_error_at_once(gateway: ScriptedGateway, value: str) -> None:
    gateway.env["DALSEGNO_STORE_TIMEOUT_SECONDS"] = value
    code, _, err = gateway.run(AGENT.format(options=""))
    assert code == 1 and "ValueError: DALSEGNO_STORE_TIMEOUT_SECONDS must be" in err
    assert gateway.bodies("attach") == []
