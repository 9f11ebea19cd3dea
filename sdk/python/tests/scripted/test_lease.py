"""Heartbeats: an agent whose loop is busy keeps its lease."""

import json

from dalsegno._attempt import HEARTBEAT_TIMEOUT_SECONDS
from scripted_gateway import HEAD, NO_ANSWER, Answer, ScriptedGateway, attached, committed, ok, problem


def test_heartbeats_continue_while_the_loop_sleeps_and_a_fenced_one_ends_the_process(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(heartbeatSeconds=0.1)]
    gateway.script["heartbeat"] = [ok(), ok(), NO_ANSWER, ok(), problem(409, "FENCED")]
    code, _, err = gateway.run("run = Run.attach(); time.sleep(600)")
    assert (code, err) == (1, "dalsegno: FENCED: because\n")
    assert gateway.bodies("heartbeat") == [b""] * 5


def test_heartbeats_continue_after_a_refusal(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(heartbeatSeconds=0.1)]
    refusals = [Answer(404, "nginx"), problem(401, "UNAUTHENTICATED"), Answer(200, b"<html>")]
    gateway.script["heartbeat"] = [*refusals, ok(cancel=True)]
    code, out, err = gateway.run("run = Run.attach()\nwhile not run.cancelled: time.sleep(0.1)")
    assert (code, out, err) == (0, "", "")


def test_heartbeats_survive_odd_answers_and_cap_retry_after(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(heartbeatSeconds=0.1)]
    unavailable = [problem(503, "UNAVAILABLE", Retry_After=seconds) for seconds in ("60", "99999999999", "9" * 5000)]
    gateway.script["heartbeat"] = [Answer(200, b"null"), Answer(200, {}), *unavailable, ok(cancel=True)]
    code, out, err = gateway.run("""
        waits = []
        time.sleep = waits.append
        run = Run.attach()
        while not run.cancelled:
            threading.Event().wait(0.05)
        print([wait for wait in waits if wait >= 1])
    """)
    assert (code, out, err) == (0, "[30, 30, 30]\n", "") and HEARTBEAT_TIMEOUT_SECONDS == 2


def test_heartbeats_continue_where_stderr_cannot_be_written(gateway: ScriptedGateway) -> None:
    gateway.script["heartbeat"] = [*[problem(503, "UNAVAILABLE")] * 9, ok(cancel=True)]
    code, _, _ = gateway.run("""
        os.dup2(os.open(os.devnull, os.O_RDONLY), 2)
        time.sleep = lambda seconds: None
        run = Run.attach()
        while not run.cancelled:
            threading.Event().wait(0.05)
    """)
    assert code == 0


def test_a_shorter_lease_causes_a_heartbeat_at_once_whichever_answer_names_it(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(heartbeatSeconds=60, leaseSeconds=180)]
    first, short = ok(leaseSeconds=180, suspend=True), ok(leaseSeconds=0.3)
    gateway.script["heartbeat"] = [first, short, short, ok(leaseSeconds=180, cancel=True)]
    gateway.script["turns/1"] = [ok(result="ok", head=HEAD, leaseSeconds=90)]
    code, _, err = gateway.run("""
        run = Run.attach()
        while not run.suspending: time.sleep(0.01)
        run.commit(1, state=1)
        while not run.cancelled: time.sleep(0.1)
    """)
    assert (code, err) == (0, "")
    assert [path for path, _, _ in gateway.seen] == ["attach", "heartbeat", "turns/1"] + ["heartbeat"] * 3


def test_a_heartbeat_refused_after_our_own_finish_is_not_taken_for_a_fence(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(heartbeatSeconds=0.05)]
    gateway.script["heartbeat"] = [problem(409, "FINISHED")]
    gateway.script["finish"] = [committed(1)]
    code, out, _ = gateway.run("""
        run = Run.attach()
        time.sleep(0.3)
        run.finish("succeeded", output=1)
        print("cleaned up")
    """)
    assert (code, out) == (0, "cleaned up\n")
    assert json.loads(gateway.bodies("finish")[0])["finish"] == {"outcome": "succeeded", "output": 1}
