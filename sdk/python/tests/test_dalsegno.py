"""The client against a scripted gateway: each test says in its name what an agent may rely on."""

import base64
import json
import signal
import time

import pytest

from gateway import HEAD, Gateway, attach, call, committed, ok, problem


def test_a_fresh_run_attaches_by_the_token_and_goes_on_by_its_instance(gateway):
    gateway.script["turns/1"] = [committed(1)]
    code, out, err = gateway.run("""
        run = Run.attach()
        print(run.name, run.attempt, run.decision, run.turn, run.state, run.input["goal"])
        run.commit(1, state={"n": 1}, events=[{"did": "it"}], usage={"tokensIn": 5})
        print(run.turn)
    """)
    assert (code, err) == (0, "")
    assert out == "demo/first 1 fresh 1 None pages\n2\n"
    (_, token, body), (_, bearer, commit) = [call for call in gateway.seen if call[0] != "heartbeat"]
    instance = json.loads(body)["instance"]
    assert (token, bearer, len(instance)) == ("Bearer pod-token", f"Bearer {instance}", 43)
    commit = json.loads(commit)
    assert len(commit.pop("commitId")) == 36
    assert commit == {"state": {"n": 1}, "events": [{"did": "it"}], "calls": [], "records": [], "usage": {"tokensIn": 5}}


def test_turns_stay_on_one_connection_and_so_with_one_gateway(gateway):
    gateway.script["attach"] = [attach(heartbeatSeconds=0.05)]
    gateway.script |= {f"turns/{turn}": [committed(turn)] for turn in (1, 2, 3)}
    code, _, err = gateway.run("run = Run.attach()\nfor turn in (1, 2, 3): run.commit(turn, state=turn); time.sleep(0.1)")
    assert (code, err) == (0, "")
    beats = set(gateway.ports.pop("heartbeat"))
    others = {port for ports in gateway.ports.values() for port in ports}
    assert len(beats) == len(others) == 1 and beats != others


def test_a_connection_that_was_closed_meanwhile_costs_no_wait_and_says_nothing(gateway):
    gateway.idle_seconds = 0.5
    gateway.script |= {"turns/1": [committed(1)], "turns/2": [committed(2)]}
    code, out, err = gateway.run("""
        run = Run.attach(heartbeat=False)
        run.commit(1, state=1)
        time.sleep(2)
        time.sleep = print
        run.commit(2, state=2)
    """)
    assert (code, out, err) == (0, "0.0\n", "")
    assert len(gateway.bodies("turns/2")) == 1 and gateway.ports["turns/1"] != gateway.ports["turns/2"]


def test_a_forked_process_has_a_connection_of_its_own(gateway):
    gateway.script |= {"turns/1": [committed(1)], "turns/2": [committed(2)]}
    code, _, _ = gateway.run("""
        run = Run.attach(heartbeat=False)
        run.commit(1, state=1)
        if os.fork() == 0:
            run.commit(2, state=2)
            os._exit(0)
        os.wait()
    """)
    assert code == 0 and len(gateway.bodies("turns/2")) == 1
    assert gateway.ports["attach"] == gateway.ports["turns/1"] != gateway.ports["turns/2"]


def test_a_resumed_run_goes_on_at_the_next_turn_with_its_channels(gateway):
    state = {"state": {"value": {"json": {"n": 7}}}, "log": {"list": [{"json": 1}, {"json": "a"}]}, "none": {"list": []}}
    gateway.script["attach"] = [attach(decision="resume", head={**HEAD, "turn": 7}, state=state)]
    code, out, _ = gateway.run("run = Run.attach(); print(run.turn, run.planned, run.state, run.channels['log'], run.channels['none'])")
    assert (code, out) == (0, "8 False {'n': 7} [1, 'a'] []\n")


def test_an_open_turn_is_resumed_after_its_plan(gateway):
    gateway.script["attach"] = [attach(decision="resume", head={**HEAD, "turn": 7, "boundary": "plan"}, state={})]
    assert gateway.run("run = Run.attach(); print(run.turn, run.planned)")[1] == "7 True\n"


def test_a_state_too_large_for_the_answer_is_fetched(gateway):
    gateway.script["attach"] = [attach(decision="resume", head=HEAD)]
    gateway.script["state"] = [(200, {"head": HEAD, "state": {"state": {"value": {"json": "large"}}}})]
    assert gateway.run("print(Run.attach().state)")[1] == "large\n"


def test_what_holds_a_nan_is_sent_as_python_writes_it_and_comes_back(gateway):
    gateway.script["turns/1"] = [committed(1)]
    assert gateway.run("Run.attach().commit(1, state={'loss': [float('nan'), float('-inf')]})")[0] == 0
    assert b'"state": {"loss": [NaN, -Infinity]}' in gateway.bodies("turns/1")[0]
    text = base64.b64encode(b'{"loss": [NaN, -Infinity]}').decode()
    kept = {"bytes": {"mediaType": "application/json5", "base64": text}}
    image = {"bytes": {"mediaType": "image/png", "base64": "AA=="}}
    state = {"state": {"value": kept}, "log": {"list": [kept, image, {"json": None}]}}
    gateway.script["attach"] = [attach(decision="resume", head=HEAD, state=state)]
    code, out, _ = gateway.run("run = Run.attach(); print(run.state, run.channels['log'])")
    loss = "{'loss': [nan, -inf]}"
    assert (code, out) == (0, f"{loss} [{loss}, {image['bytes']}, None]\n")


@pytest.mark.parametrize("fault", [problem(503, "UNAVAILABLE"), problem(429, "TOO_MANY_REQUESTS"), (502, "nginx"), Gateway.CUT,
                                   (200, b"<html>"), (200, b""), (200, b"null"), (200, b'{"head": {"turn"'), (200, b"\x1f\x8b"),
                                   (200, {}, ("Content-Length", "99"), ("Connection", "close"))])
def test_a_commit_without_an_answer_is_sent_again_as_the_same_bytes(gateway, fault):
    gateway.script["turns/1"] = [fault, fault, committed(1)]
    code, _, err = gateway.run("Run.attach().commit(1, state={'n': 1.5})")
    assert (code, err) == (0, "")
    first, *others = gateway.bodies("turns/1")
    assert others == [first, first]
    assert len(set(gateway.ports["turns/1"])) == 3, "each time on a new connection: it may lead to a gateway that can"


@pytest.mark.parametrize("answer", [(302, {}, ("Location", "/")), (204, b""), (404, "nginx")])
def test_what_is_neither_an_answer_nor_a_refusal_of_the_gateway_is_not_taken_for_success(gateway, answer):
    gateway.script["records"] = [answer]
    code, out, _ = gateway.run("""
        try:
            Run.attach().write_records([])
        except Refused as refused:
            print(refused.code)
    """)
    assert (code, out) == (0, f"HTTP_{answer[0]}\n")


def test_a_retry_after_that_is_no_number_is_not_waited_for(gateway):
    gateway.script["attach"] = [
        *((*problem(503, "NOT_READY"), ("Retry-After", when)) for when in ("Fri, 31 Dec 2100 23:59:59 GMT", "\xb2")), attach()]
    assert gateway.run("Run.attach()")[::2] == (0, "")


def test_neither_a_wait_nor_a_refusal_tells_a_log_which_call_or_record_was_asked_for(gateway):
    away, no = [problem(503, "UNAVAILABLE")] * 8, [problem(400, "INVALID")]
    for path in "calls/canary-1/claim", "records?space=canary-2&prefix=canary-3":
        gateway.script[path] = away + no
    code, _, err = gateway.run("""
        time.sleep = lambda seconds: None
        run = Run.attach()
        try:
            run.call("canary-1", policy="ask", tool=print)
        except Refused as refused:
            print(refused, file=sys.stderr)
        next(run.records("canary-2", "canary-3"))
    """)
    assert code == 1 and "canary" not in err
    for call in "calls/*/claim", "records":
        assert f"dalsegno: {call}: no answer yet (503)" in err and f"'{call}: because'" in err


def test_retry_after_is_honoured(gateway):
    gateway.script["attach"] = [(*problem(503, "NOT_READY"), ("Retry-After", "1")), attach()]
    began = time.monotonic()
    assert gateway.run("Run.attach()")[0] == 0
    assert time.monotonic() - began >= 1


def test_a_fenced_commit_ends_the_process_whatever_the_agent_catches(gateway):
    gateway.script["turns/1"] = [problem(409, "FENCED")]
    code, out, err = gateway.run("""
        try:
            Run.attach().commit(1, state=1)
        except BaseException:
            pass
        print("still here")
    """)
    assert (code, out, err) == (1, "", "dalsegno: FENCED: because\n")


def test_a_fence_and_a_wait_that_nobody_can_be_told_of_are_heeded_all_the_same(gateway):
    gateway.script["turns/1"] = [*[problem(503, "UNAVAILABLE")] * 8, problem(409, "FENCED")]
    code, out, _ = gateway.run("""
        os.dup2(os.open(os.devnull, os.O_RDONLY), 2)
        time.sleep = lambda seconds: None
        try:
            Run.attach(heartbeat=False).commit(1, state=1)
        except BaseException:
            pass
        print("still here")
    """)
    assert (code, out, len(gateway.bodies("turns/1"))) == (1, "", 9)


@pytest.mark.parametrize("code", ["ATTEMPT_SPENT", "VERSION_INCOMPATIBLE", "CHECKPOINT_CORRUPT"])
def test_a_refused_attach_ends_the_process(gateway, code):
    gateway.script["attach"] = [problem(409, code)]
    assert gateway.run("Run.attach()") == (1, "", f"dalsegno: {code}: because\n")


@pytest.mark.parametrize("text", ["", " \n", "null"])
def test_no_input_reads_as_none(gateway, tmp_path, text):
    (tmp_path / "input").write_text(text)
    assert gateway.run("print(Run.attach().input)")[1] == "None\n"


@pytest.mark.parametrize("text", [b"plain text", b"\xff"])
def test_an_input_that_is_no_json_is_the_agents_to_read(gateway, tmp_path, text):
    (tmp_path / "input").write_bytes(text)
    code, out, err = gateway.run("run = Run.attach(); print(run.turn, flush=True); run.input")
    assert (code, out) == (1, "1\n") and "DALSEGNO_INPUT_FILE" in err


def test_a_body_above_the_limit_is_refused_before_it_is_sent(gateway):
    gateway.script["turns/1"] = [committed(1)]
    code, out, err = gateway.run("""
        run = Run.attach()
        try:
            run.commit(1, state="x" * (16 << 20))
        except Refused as refused:
            print(refused.code)
            run.commit(1, state="x" * ((16 << 20) - 999))
    """)
    assert (code, out, err) == (0, "TOO_LARGE\n", "")
    assert len(gateway.bodies("turns/1")) == 1


def test_attaching_to_a_finished_run_is_a_good_end(gateway):
    gateway.script["attach"] = [problem(409, "FINISHED")]
    assert gateway.run("Run.attach()")[0] == 0


def test_any_other_refusal_is_an_exception_with_its_code(gateway):
    gateway.script["turns/3"] = [problem(409, "CONFLICT")]
    code, out, _ = gateway.run("""
        try:
            Run.attach().commit(3, state=1)
        except Refused as refused:
            print(refused.code)
    """)
    assert (code, out) == (0, "CONFLICT\n")


def test_heartbeats_go_on_while_the_loop_sleeps_and_one_that_is_fenced_ends_it(gateway):
    gateway.script["attach"] = [attach(heartbeatSeconds=0.1)]
    gateway.script["heartbeat"] = [ok(), ok(), Gateway.CUT, ok(), problem(409, "FENCED")]
    began = time.monotonic()
    code, _, err = gateway.run("run = Run.attach(); time.sleep(20)")
    assert time.monotonic() - began < 10
    assert (code, err) == (1, "dalsegno: FENCED: because\n")
    assert gateway.bodies("heartbeat") == [b""] * 5


def test_a_heartbeat_that_is_refused_is_not_the_last_one(gateway):
    gateway.script["attach"] = [attach(heartbeatSeconds=0.1)]
    gateway.script["heartbeat"] = [(404, "nginx"), problem(401, "UNAUTHENTICATED"), (200, b"<html>"), ok(cancel=True)]
    code, out, err = gateway.run("run = Run.attach()\nwhile not run.cancelled: time.sleep(0.1)")
    assert (code, out, err) == (0, "", "")


def test_heartbeats_outlive_what_an_odd_answer_says_and_wait_for_none_past_the_lease(gateway):
    gateway.script["attach"] = [attach(heartbeatSeconds=0.1)]
    away = [(*problem(503, "UNAVAILABLE"), ("Retry-After", seconds)) for seconds in ("60", "99999999999", "9" * 5000)]
    gateway.script["heartbeat"] = [(200, b"null"), (200, {}), *away, ok(cancel=True)]
    code, out, err = gateway.run("""
        waits = []
        time.sleep = waits.append
        run = Run.attach()
        while not run.cancelled:
            threading.Event().wait(0.05)
        print([wait for wait in waits if wait >= 1])
    """)
    assert (code, out, err) == (0, "[5, 5, 5]\n", "")


def test_heartbeats_go_on_where_nobody_can_be_told_that_they_are_not_answered(gateway):
    gateway.script["heartbeat"] = [*[problem(503, "UNAVAILABLE")] * 9, ok(cancel=True)]
    code, _, _ = gateway.run("""
        os.dup2(os.open(os.devnull, os.O_RDONLY), 2)
        time.sleep = lambda seconds: None
        run = Run.attach()
        while not run.cancelled:
            threading.Event().wait(0.05)
    """)
    assert code == 0


def test_a_shorter_lease_is_beaten_for_at_once_whichever_answer_tells_of_it(gateway):
    gateway.script["attach"] = [attach(heartbeatSeconds=60, leaseSeconds=180)]
    first = ok(leaseSeconds=180, suspend=True)
    gateway.script["heartbeat"] = [first, ok(leaseSeconds=0.3), ok(leaseSeconds=0.3), ok(cancel=True)]
    gateway.script["turns/1"] = [ok(result="ok", head=HEAD, leaseSeconds=90)]
    code, _, err = gateway.run("""
        run = Run.attach()
        while not run.suspending: time.sleep(0.01)
        run.commit(1, state=1)
        while not run.cancelled: time.sleep(0.1)
    """)
    assert (code, err) == (0, "")
    assert [path for path, _, _ in gateway.seen] == ["attach", "heartbeat", "turns/1"] + ["heartbeat"] * 3


def test_a_heartbeat_after_our_own_finish_is_not_taken_for_a_fence(gateway):
    gateway.script["attach"] = [attach(heartbeatSeconds=0.05)]
    gateway.script["heartbeat"] = [problem(409, "FINISHED")]
    gateway.script["finish"] = [committed(1)]
    code, out, _ = gateway.run("run = Run.attach(); time.sleep(0.3); run.finish('succeeded', output=1); print('cleaned up')")
    assert (code, out) == (0, "cleaned up\n")
    assert json.loads(gateway.bodies("finish")[0])["finish"] == {"outcome": "succeeded", "output": 1}


def test_a_cancel_heard_by_heartbeat_is_acknowledged_between_two_steps(gateway):
    gateway.script["attach"] = [attach(heartbeatSeconds=0.05)]
    gateway.script["heartbeat"] = [ok(), ok(cancel=True)]
    gateway.script["cancelled"] = [Gateway.CUT, ok(cancel=True)]
    code, out, _ = gateway.run("""
        run = Run.attach()
        while True:
            run.check()
            time.sleep(0.05)
    """)
    assert (code, out) == (0, "")
    assert gateway.bodies("cancelled") == [b"", b""]


LOOP = """
    run = Run.attach({options})
    print("attached")
    while True:
        run.check()
        time.sleep({step})
"""


def stop(agent):
    assert agent.stdout.readline() == "attached\n"
    agent.send_signal(signal.SIGTERM)
    return agent.wait(timeout=10)


def test_sigterm_leaves_with_143_between_two_steps(gateway):
    assert stop(gateway.start(LOOP.format(options="", step=0.05))) == 143


def test_sigterm_ends_a_step_that_takes_too_long(gateway):
    began = time.monotonic()
    assert stop(gateway.start("    dalsegno.GRACE_SECONDS = 0.3" + LOOP.format(options="", step=20))) == 143
    assert time.monotonic() - began < 8


def test_sigterm_ends_a_forked_process_at_once_and_leaves_its_parent_alone(gateway):
    code, out, err = gateway.run("""
        import multiprocessing
        run = Run.attach()
        with multiprocessing.get_context("fork").Pool(2) as pool:  # at its end the workers are sent a SIGTERM
            print(pool.map(abs, [-1, 2]))
        print(run.stopping)
    """)
    assert (code, out, err) == (0, "[1, 2]\nFalse\n", "")


def test_without_the_handler_sigterm_kills(gateway):
    assert stop(gateway.start(LOOP.format(options="sigterm=False", step=0.05))) == -signal.SIGTERM


def test_a_failure_leaves_word_in_the_termination_log(gateway, tmp_path):
    log = tmp_path / "log"
    log.touch()
    code, _, err = gateway.run(f"""
        dalsegno.TERMINATION_LOG = pathlib.Path({str(log)!r})
        Run.attach().fail("the wörld is gone" + "." * 9999, fatal=True)
    """)
    assert (code, err[:40]) == (1, "dalsegno: fatal: the wörld is gone......")
    word = json.loads(log.read_text())
    assert (word["dalsegno"], word["class"], len(word["message"])) == (1, "fatal", 512)


def test_text_that_is_no_unicode_costs_neither_the_word_nor_the_fence(gateway, tmp_path):
    log = tmp_path / "log"
    log.touch()
    code, _, _ = gateway.run(f"""
        dalsegno.TERMINATION_LOG = pathlib.Path({str(log)!r})
        Run.attach().fail("no such page: \\ud800", fatal=True)
    """)
    assert (code, json.loads(log.read_text())["message"]) == (1, "no such page: ?")
    fenced = {"code": "FENCED", "detail": "\ud800"}
    gateway.script["attach"] = [(409, fenced)]
    assert gateway.run("Run.attach()") == (1, "", "dalsegno: FENCED: ?\n")
