"""Attaching, committing and reading the input: where an agent starts and what it may store."""

import base64
import json
from pathlib import Path

import pytest

from scripted_gateway import HEAD, Answer, ScriptedGateway, attached, committed, problem


def test_a_fresh_run_attaches_with_the_token_and_then_uses_its_instance_secret(gateway: ScriptedGateway) -> None:
    gateway.script["turns/1"] = [committed(1)]
    code, out, err = gateway.run("""
        run = Run.attach()
        print(run.name, run.attempt, run.decision, run.next_turn, run.state, run.input["goal"])
        run.commit(1, state={"n": 1}, events=[{"did": "it"}], usage={"tokensIn": 5})
        print(run.next_turn)
    """)
    assert (code, err) == (0, "")
    assert out == "demo/first 1 fresh 1 None pages\n2\n"
    (_, token, body), (_, bearer, commit) = [call for call in gateway.seen if call[0] != "heartbeat"]
    instance = json.loads(body)["instance"]
    assert (token, bearer, len(instance)) == ("Bearer pod-token", f"Bearer {instance}", 43)
    commit = json.loads(commit)
    assert len(commit.pop("commitId")) == 36
    empty: dict[str, list[object]] = {"calls": [], "records": []}
    assert commit == {"state": {"n": 1}, "events": [{"did": "it"}], "usage": {"tokensIn": 5}, **empty}


def test_a_resumed_run_continues_at_the_next_turn_with_its_channels(gateway: ScriptedGateway) -> None:
    log = {"list": [{"json": 1}, {"json": "a"}]}
    state = {"state": {"value": {"json": {"n": 7}}}, "log": log, "none": {"list": []}}
    gateway.script["attach"] = [attached(decision="resume", branch=2, head={**HEAD, "turn": 7}, state=state)]
    code, out, _ = gateway.run("""
        run = Run.attach()
        print(run.next_turn, run.planned, run.branch, run.state, run.channels["log"], run.channels["none"])
    """)
    assert (code, out) == (0, "8 False 2 {'n': 7} [1, 'a'] []\n")


def test_an_open_turn_is_resumed_after_its_plan(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(decision="resume", head={**HEAD, "turn": 7, "boundary": "plan"}, state={})]
    assert gateway.run("run = Run.attach(); print(run.next_turn, run.planned)")[1] == "7 True\n"


def test_a_state_too_large_for_the_answer_to_attach_is_fetched(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(decision="resume", head=HEAD)]
    gateway.script["state"] = [Answer(200, {"head": HEAD, "state": {"state": {"value": {"json": "large"}}}})]
    assert gateway.run("print(Run.attach().state)")[1] == "large\n"


def test_a_state_with_nan_is_sent_as_python_writes_it_and_read_back(gateway: ScriptedGateway) -> None:
    gateway.script["turns/1"] = [committed(1)]
    assert gateway.run("Run.attach().commit(1, state={'loss': [float('nan'), float('-inf')]})")[0] == 0
    assert b'"state": {"loss": [NaN, -Infinity]}' in gateway.bodies("turns/1")[0]
    text = base64.b64encode(b'{"loss": [NaN, -Infinity]}').decode()
    kept = {"bytes": {"mediaType": "application/json5", "base64": text}}
    image = {"bytes": {"mediaType": "image/png", "base64": "AA=="}}
    state = {"state": {"value": kept}, "log": {"list": [kept, image, {"json": None}]}}
    gateway.script["attach"] = [attached(decision="resume", head=HEAD, state=state)]
    code, out, _ = gateway.run("run = Run.attach(); print(run.state, run.channels['log'])")
    loss = "{'loss': [nan, -inf]}"
    assert (code, out) == (0, f"{loss} [{loss}, {image['bytes']}, None]\n")


def test_a_plan_names_its_calls_and_a_result_can_finish_the_run(gateway: ScriptedGateway) -> None:
    gateway.script["turns/1/plan"] = [committed(1, "plan")]
    gateway.script["turns/1"] = [committed(1)]
    code, out, _ = gateway.run("""
        run = Run.attach()
        run.commit(1, plan=True, calls=[{"id": "turn-1", "policy": "ask"}], open_calls=["slow", "slower"])
        print(run.next_turn, run.planned)
        stuck = {"outcome": "failed", "reason": "Stuck"}
        run.commit(1, channels={"append": {"log": [1, None]}, "set": {"n": 2}}, finish=stuck)
        print(run.next_turn, run.planned)
    """)
    assert (code, out) == (0, "1 True\n2 False\n")
    plan, result = json.loads(gateway.bodies("turns/1/plan")[0]), json.loads(gateway.bodies("turns/1")[0])
    assert plan["calls"] == [{"id": "turn-1", "policy": "ask", "key": "r1:turn-1"}]
    assert plan["openCalls"] == ["slow", "slower"] and "openCalls" not in result
    assert result["channels"] == {"append": {"log": [{"json": 1}, {"json": None}]}, "set": {"n": {"json": 2}}}
    assert result["outcome"] == {"finish": {"outcome": "failed", "reason": "Stuck"}}


@pytest.mark.parametrize("code", ["ATTEMPT_SPENT", "VERSION_INCOMPATIBLE", "CHECKPOINT_CORRUPT"])
def test_a_refused_attach_ends_the_process(gateway: ScriptedGateway, code: str) -> None:
    gateway.script["attach"] = [problem(409, code)]
    assert gateway.run("Run.attach()") == (1, "", f"dalsegno: {code}: because\n")


def test_attaching_to_a_finished_run_exits_with_0(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [problem(409, "FINISHED")]
    assert gateway.run("Run.attach()")[0] == 0


def test_any_other_refusal_is_an_exception_with_its_code(gateway: ScriptedGateway) -> None:
    gateway.script["turns/3"] = [problem(409, "CONFLICT")]
    code, out, _ = gateway.run("""
        try:
            Run.attach().commit(3, state=1)
        except Refused as refused:
            print(refused.code)
    """)
    assert (code, out) == (0, "CONFLICT\n")


@pytest.mark.parametrize("text", ["", " \n", "null"])
def test_a_missing_input_is_none(gateway: ScriptedGateway, tmp_path: Path, text: str) -> None:
    (tmp_path / "input").write_text(text)
    assert gateway.run("print(Run.attach().input)")[1] == "None\n"


@pytest.mark.parametrize("text", [b"plain text", b"\xff"])
def test_an_input_that_is_not_json_is_an_error_only_when_it_is_read(
    gateway: ScriptedGateway, tmp_path: Path, text: bytes
) -> None:
    (tmp_path / "input").write_bytes(text)
    code, out, err = gateway.run("run = Run.attach(); print(run.next_turn, flush=True); run.input")
    assert (code, out) == (1, "1\n") and "DALSEGNO_INPUT_FILE" in err
