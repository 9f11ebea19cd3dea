"""The client against a scripted gateway: each test says in its name what an agent may rely on."""

import base64
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SDK = Path(__file__).parents[1]
FLAGS = {"suspend": False, "cancel": False, "leaseSeconds": 15}
HEAD = {"turn": 1, "boundary": "result", "position": 0, "contentHash": "sha256:00"}


def attach(**more):
    fresh = {"run": "demo/first", "attempt": 1, "decision": "fresh", "unsettledCalls": [], "completedCalls": []}
    return 200, {**fresh, "approval": None, "warnings": [], "heartbeatSeconds": 60, **FLAGS, **more}


def ok(**more):
    return 200, {**FLAGS, **more}


def committed(turn, boundary="result"):
    return ok(result="ok", head={**HEAD, "turn": turn, "boundary": boundary})


def problem(status, code):
    return status, {"type": "about:blank", "status": status, "code": code, "detail": "because"}


def call(verdict, state="started", **more):
    made = {"id": "turn-1", "turn": 1, "policy": "retrySameKey", "key": "k1", "state": state, **more}
    return 200, {"verdict": verdict, "call": made}


class Gateway:
    """Answers by a script: {path: [answers in order, the last one again and again]}; the answer `CUT` is none at all."""

    CUT = object()

    def __init__(self, tmp_path):
        self.script = {"attach": [attach()], "heartbeat": [ok()]}
        self.seen = []  # (path, bearer, body) of every request
        self.ports = defaultdict(list)  # the client's, of the requests of each path: the same one is the same connection
        self.idle_seconds = 60  # after which a connection is closed
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                self.timeout = gateway.idle_seconds
                super().setup()

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.removeprefix("/v1/runs/r1/")
                gateway.seen.append((path, self.headers["Authorization"], body))
                gateway.ports[path].append(self.client_address[1])
                answers = gateway.script[path]
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                if answer is Gateway.CUT:
                    self.close_connection = True
                    return
                status, fields, *headers = answer
                text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()
        (tmp_path / "token").write_text("pod-token\n")
        (tmp_path / "input").write_text('{"goal": "pages"}')
        self.env = {
            **os.environ,
            "PYTHONPATH": str(SDK),
            "DALSEGNO_URL": f"http://127.0.0.1:{self.server.server_port}/v1/runs/r1",
            "DALSEGNO_TOKEN_FILE": str(tmp_path / "token"),
            "DALSEGNO_INPUT_FILE": str(tmp_path / "input"),
        }

    def start(self, code):
        """Starts an agent of these lines, in its own process: most of what is promised is how it ends."""
        preamble = "import os, time, dalsegno\nfrom dalsegno import *\n"
        command = [sys.executable, "-u", "-c", preamble + textwrap.dedent(code)]
        return subprocess.Popen(command, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, code):
        agent = self.start(code)
        out, err = agent.communicate(timeout=30)
        return agent.returncode, out, err

    def bodies(self, path):
        return [body for seen, _, body in self.seen if seen == path]


@pytest.fixture
def gateway(tmp_path):
    gateway = Gateway(tmp_path)
    yield gateway
    gateway.server.shutdown()
    gateway.server.server_close()


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
    gateway.idle_seconds = 0.1
    gateway.script |= {"turns/1": [committed(1)], "turns/2": [committed(2)]}
    code, out, err = gateway.run("""
        run = Run.attach(heartbeat=False)
        run.commit(1, state=1)
        time.sleep(0.5)
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
        dalsegno.time.sleep = lambda seconds: None
        run = Run.attach()
        try:
            run.call("canary-1", policy="ask", tool=print)
        except Refused as refused:
            print(refused, file=dalsegno.sys.stderr)
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
        dalsegno.time.sleep = lambda seconds: None
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
        dalsegno.time.sleep = waits.append
        run = Run.attach()
        while not run.cancelled:
            dalsegno.threading.Event().wait(0.05)
        print([wait for wait in waits if wait >= 1])
    """)
    assert (code, out, err) == (0, "[5, 5, 5]\n", "")


def test_heartbeats_go_on_where_nobody_can_be_told_that_they_are_not_answered(gateway):
    gateway.script["heartbeat"] = [*[problem(503, "UNAVAILABLE")] * 9, ok(cancel=True)]
    code, _, _ = gateway.run("""
        os.dup2(os.open(os.devnull, os.O_RDONLY), 2)
        dalsegno.time.sleep = lambda seconds: None
        run = Run.attach()
        while not run.cancelled:
            dalsegno.threading.Event().wait(0.05)
    """)
    assert code == 0


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


def test_a_new_call_runs_its_tool_with_the_key_the_store_knows(gateway):
    gateway.script["calls/turn-1/claim"] = [call("go", arguments={"page": 1})]
    gateway.script["calls/turn-1/complete"] = [ok()]
    code, out, err = gateway.run("""
        run = Run.attach()
        print(run.call("turn-1", policy="retrySameKey", arguments={"page": 1}, tool=lambda key, args: [key, args["page"]]))
    """)
    assert (code, out, err) == (0, "['k1', 1]\n", "")
    claim = json.loads(gateway.bodies("calls/turn-1/claim")[0])
    done = json.loads(gateway.bodies("calls/turn-1/complete")[0])
    assert (claim["policy"], claim["arguments"], claim["key"]) == ("retrySameKey", {"page": 1}, "r1:turn-1")
    assert done == {"claimId": claim["claimId"], "outcome": "completed", "result": ["k1", 1]}


def test_a_call_that_is_done_is_not_made_again(gateway):
    gateway.script["calls/turn-1/claim"] = [call("done", "completed", result="stored")]
    code, out, _ = gateway.run("print(Run.attach().call('turn-1', policy='ask', tool=lambda *_: print('ran')))")
    assert (code, out) == (0, "stored\n")


def test_an_uncertain_call_is_handed_to_the_agent_which_settles_it(gateway):
    gateway.script["calls/turn-1/claim"] = [call("uncertain")]
    gateway.script["calls/turn-1/settle"] = [ok()]
    code, out, _ = gateway.run("""
        run = Run.attach()
        try:
            run.call("turn-1", policy="probe", tool=lambda *_: print("ran"))
        except Uncertain as uncertain:
            run.settle("turn-1", "completed", "found by key " + uncertain.call["key"], result=7)
    """)
    assert (code, out) == (0, "")
    settled = json.loads(gateway.bodies("calls/turn-1/settle")[0])
    assert settled == {"outcome": "completed", "reason": "found by key k1", "result": 7}


def test_an_uncertain_call_that_nobody_catches_leaves_neither_key_nor_arguments_in_the_log(gateway):
    gateway.script["calls/turn-1/claim"] = [call("uncertain", key="key-4711", arguments={"card": "4111"})]
    code, _, err = gateway.run("""
        import copy, pickle
        try:
            Run.attach().call("turn-1", policy="probe", tool=print)
        except Uncertain as uncertain:
            for same in uncertain, copy.copy(uncertain), pickle.loads(pickle.dumps(uncertain)):
                assert same.call["key"] == "key-4711"
                print(repr(same), file=dalsegno.sys.stderr)
            raise
    """)
    assert code == 1 and err.count("call 'turn-1' may have taken effect") == 4
    assert "4711" not in err and "4111" not in err


def test_a_tool_that_raised_may_be_called_again_under_the_same_claim(gateway):
    gateway.script["calls/turn-1/claim"] = [call("go")]
    gateway.script["calls/turn-1/complete"] = [ok()]
    code, _, err = gateway.run("""
        run, tries = Run.attach(), []
        def tool(key, _):
            tries.append(key)
            return 1 / (len(tries) - 1)
        try:
            run.call("turn-1", policy="retrySameKey", tool=tool)
        except ZeroDivisionError:
            run.call("turn-1", policy="retrySameKey", tool=tool)
    """)
    assert (code, err) == (0, "")
    first, second = gateway.bodies("calls/turn-1/claim")
    assert first == second


def test_an_id_that_is_none_is_the_gateways_to_refuse(gateway):
    gateway.script["calls/pay%20%C3%A4%2F%0A1/claim"] = [problem(400, "INVALID")]
    gateway.script["calls/pay%3F/settle"] = [problem(400, "INVALID")]
    code, out, err = gateway.run("""
        run = Run.attach()
        for refused in (lambda: run.call("pay ä/\\n1", policy="ask", tool=print),
                        lambda: run.settle("pay?", "failed", "looked")):
            try:
                refused()
            except Refused as error:
                print(error.code)
    """)
    assert (code, out, err) == (0, "INVALID\nINVALID\n", "")


def test_what_cannot_be_sent_is_not_sent_again(gateway):
    gateway.env["DALSEGNO_URL"] += " "
    code, _, err = gateway.run("Run.attach()")
    assert code == 1 and "InvalidURL" in err


def test_a_tool_that_refused_is_recorded_as_failed(gateway):
    gateway.script["calls/turn-1/claim"] = [call("go"), call("done", "failed", result="no such page")]
    gateway.script["calls/turn-1/complete"] = [ok()]
    code, out, _ = gateway.run("""
        run = Run.attach()
        def tool(key, _):
            raise CallFailed("no such page")
        for _ in range(2):
            try:
                run.call("turn-1", policy="retrySameKey", tool=tool)
            except CallFailed as failed:
                print(failed.result)
    """)
    assert (code, out) == (0, "no such page\n" * 2)
    assert [json.loads(body)["outcome"] for body in gateway.bodies("calls/turn-1/complete")] == ["failed"]


def test_a_tool_that_refused_its_key_is_recorded_so_and_asked_no_more(gateway):
    gateway.script["calls/turn-1/claim"] = [call("go"), call("uncertain", "keyRefused", result="422")]
    gateway.script["calls/turn-1/complete"] = [ok()]
    code, out, _ = gateway.run("""
        run = Run.attach()
        def tool(key, _):
            raise KeyRefused("422")
        for _ in range(2):
            try:
                run.call("turn-1", policy="retrySameKey", tool=tool)
            except KeyRefused as refused:
                print(refused.result)
    """)
    assert (code, out) == (0, "422\n" * 2)
    assert [json.loads(body)["outcome"] for body in gateway.bodies("calls/turn-1/complete")] == ["keyRefused"]


def test_a_plan_names_its_calls_and_a_result_may_finish_the_run(gateway):
    gateway.script["turns/1/plan"] = [committed(1, "plan")]
    gateway.script["turns/1"] = [committed(1)]
    code, out, _ = gateway.run("""
        run = Run.attach()
        run.commit(1, plan=True, calls=[{"id": "turn-1", "policy": "ask"}])
        print(run.turn, run.planned)
        run.commit(1, channels={"append": {"log": [1, None]}, "set": {"n": 2}}, finish={"outcome": "failed", "reason": "Stuck"})
        print(run.turn, run.planned)
    """)
    assert (code, out) == (0, "1 True\n2 False\n")
    plan, result = json.loads(gateway.bodies("turns/1/plan")[0]), json.loads(gateway.bodies("turns/1")[0])
    assert plan["calls"] == [{"id": "turn-1", "policy": "ask", "key": "r1:turn-1"}]
    assert result["channels"] == {"append": {"log": [{"json": 1}, {"json": None}]}, "set": {"n": {"json": 2}}}
    assert result["outcome"] == {"finish": {"outcome": "failed", "reason": "Stuck"}}


def test_records_are_written_as_the_same_bytes_until_they_are_there(gateway):
    gateway.script["records"] = [Gateway.CUT, problem(503, "UNAVAILABLE"), (200, {"result": "duplicate"})]
    code, _, err = gateway.run("""
        Run.attach().write_records([
            {"put": {"space": "s", "key": "k", "value": {"n": 1}}}, {"putIfAbsent": {"space": "s", "key": "k", "value": None}},
            {"append": {"space": "s", "key": "log", "entryId": "e1", "value": "a"}}, {"delete": {"space": "s", "key": "old"}},
        ])
    """)
    assert (code, err) == (0, "")
    first, *others = gateway.bodies("records")
    assert others == [first, first]
    batch = json.loads(first)
    assert len(batch.pop("batchId")) == 36
    assert batch == {"operations": [
        {"put": {"space": "s", "key": "k", "value": {"json": {"n": 1}}}},
        {"putIfAbsent": {"space": "s", "key": "k", "value": {"json": None}}},
        {"append": {"space": "s", "key": "log", "entryId": "e1", "value": {"json": "a"}}},
        {"delete": {"space": "s", "key": "old"}},
    ]}


def test_records_may_go_with_a_boundary(gateway):
    gateway.script["turns/1"] = [committed(1)]
    code, _, _ = gateway.run("""
        Run.attach().commit(1, state=1, records=[{"put": {"space": "s", "key": "k", "value": 2}}])
    """)
    assert code == 0
    records = json.loads(gateway.bodies("turns/1")[0])["records"]
    assert records == [{"put": {"space": "s", "key": "k", "value": {"json": 2}}}]


def test_records_are_read_page_by_page_and_only_as_far_as_one_reads(gateway):
    query = "records?space=a%20b&prefix=%C3%A4%2B"
    pages = [
        {"records": [{"key": "ä+1", "value": {"json": 1}, "turn": 1}, {"key": "ä+2", "value": {"json": None}, "turn": 1}], "next": "1.ä+2"},
        {"records": [{"key": "ä+3", "entryId": "e", "value": {"bytes": {"mediaType": "x/y", "base64": "AA=="}}, "turn": 2}]},
    ]
    gateway.script[query], gateway.script[f"{query}&after=1.%C3%A4%2B2"] = [(200, pages[0])], [(200, pages[1])]
    code, out, err = gateway.run("""
        run = Run.attach()
        print(next(run.records("a b", "ä+")))
        print([(record["key"], record["value"]) for record in run.records("a b", "ä+")])
    """)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "{'key': 'ä+1', 'value': 1, 'turn': 1}",
        "[('ä+1', 1), ('ä+2', None), ('ä+3', {'mediaType': 'x/y', 'base64': 'AA=='})]",
    ]
    assert [path for path, _, _ in gateway.seen if path.startswith("records")] == [query, query, f"{query}&after=1.%C3%A4%2B2"]


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
        dalsegno.TERMINATION_LOG = dalsegno.Path({str(log)!r})
        Run.attach().fail("the wörld is gone" + "." * 9999, fatal=True)
    """)
    assert (code, err[:40]) == (1, "dalsegno: fatal: the wörld is gone......")
    word = json.loads(log.read_text())
    assert (word["dalsegno"], word["class"], len(word["message"])) == (1, "fatal", 512)


def test_text_that_is_no_unicode_costs_neither_the_word_nor_the_fence(gateway, tmp_path):
    log = tmp_path / "log"
    log.touch()
    code, _, _ = gateway.run(f"""
        dalsegno.TERMINATION_LOG = dalsegno.Path({str(log)!r})
        Run.attach().fail("no such page: \\ud800", fatal=True)
    """)
    assert (code, json.loads(log.read_text())["message"]) == (1, "no such page: ?")
    fenced = {"code": "FENCED", "detail": "\ud800"}
    gateway.script["attach"] = [(409, fenced)]
    assert gateway.run("Run.attach()") == (1, "", "dalsegno: FENCED: ?\n")
