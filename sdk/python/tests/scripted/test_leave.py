"""How the process ends: on a fence, on a cancel, on SIGTERM, and with a message why it failed."""

import json
import signal
from pathlib import Path

from scripted_gateway import LONGEST_SECONDS, NO_ANSWER, Agent, Answer, ScriptedGateway, attached, ok, problem


def test_a_fenced_commit_ends_the_process_whatever_the_agent_catches(gateway: ScriptedGateway) -> None:
    gateway.script["turns/1"] = [problem(409, "FENCED")]
    code, out, err = gateway.run("""
        try:
            Run.attach().commit(1, state=1)
        except BaseException:
            pass
        print("still here")
    """)
    assert (code, out, err) == (1, "", "dalsegno: FENCED: because\n")


def test_a_fence_ends_the_process_where_stderr_cannot_be_written(gateway: ScriptedGateway) -> None:
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


def test_a_cancel_heard_by_heartbeat_is_acknowledged_between_two_steps(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(heartbeatSeconds=0.05)]
    gateway.script["heartbeat"] = [ok(), ok(cancel=True)]
    gateway.script["cancelled"] = [NO_ANSWER, ok(cancel=True)]
    code, out, _ = gateway.run("""
        run = Run.attach()
        while True:
            run.check()
            time.sleep(0.05)
    """)
    assert (code, out) == (0, "")
    assert gateway.bodies("cancelled") == [b"", b""]


LOOP = """
    dalsegno.GRACE_SECONDS, dalsegno._leave.GRACE_SECONDS = {grace}, 600  # the first one counts
    run = Run.attach({options})
    print("attached")
    while True:
        run.check()
        time.sleep({step})
"""


def stop(agent: Agent) -> int:
    assert agent.stdout and agent.stdout.readline() == "attached\n"
    agent.send_signal(signal.SIGTERM)
    try:
        return agent.wait(timeout=LONGEST_SECONDS)
    finally:
        agent.kill()


def test_sigterm_exits_with_143_between_two_steps(gateway: ScriptedGateway) -> None:
    assert stop(gateway.start(LOOP.format(options="", step=0.05, grace=600))) == 143


def test_sigterm_ends_a_step_that_takes_longer_than_the_grace(gateway: ScriptedGateway) -> None:
    assert stop(gateway.start(LOOP.format(options="", step=600, grace=0.3))) == 143


def test_sigterm_ends_a_forked_process_at_once_and_not_its_parent(gateway: ScriptedGateway) -> None:
    code, out, err = gateway.run("""
        import multiprocessing
        run = Run.attach()
        with multiprocessing.get_context("fork").Pool(2) as pool:  # at its end the workers are sent a SIGTERM
            print(pool.map(abs, [-1, 2]))
        print(run.stopping)
    """)
    assert (code, out, err) == (0, "[1, 2]\nFalse\n", "")


def test_a_sigterm_may_interrupt_the_handler_of_another(gateway: ScriptedGateway) -> None:
    code, out, err = gateway.run("""
        import signal
        run, signals = Run.attach(heartbeat=False), list(range(50))
        def interrupt(*_):  # called before each line, those of the handler included
            if signals:
                signals.pop()
                signal.raise_signal(signal.SIGTERM)
            return interrupt
        sys.settrace(interrupt)
        signal.raise_signal(signal.SIGTERM)
        sys.settrace(None)
        print("goes on")
        run.check()
    """)
    assert (code, out, err) == (143, "goes on\n", "")


def test_without_the_handler_sigterm_kills(gateway: ScriptedGateway) -> None:
    assert stop(gateway.start(LOOP.format(options="sigterm=False", step=0.05, grace=600))) == -signal.SIGTERM


def test_a_failure_writes_the_termination_message(gateway: ScriptedGateway, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    code, _, err = gateway.run(f"""
        dalsegno.TERMINATION_LOG = pathlib.Path({str(log)!r})
        Run.attach().fail("the wörld is gone" + "." * 9999, fatal=True)
    """)
    assert (code, err[:40]) == (1, "dalsegno: fatal: the wörld is gone......")
    word = json.loads(log.read_text())
    assert (word["dalsegno"], word["class"], len(word["message"])) == (1, "fatal", 512)


def test_text_that_is_not_unicode_loses_neither_the_termination_message_nor_the_fence(
    gateway: ScriptedGateway, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    code, _, _ = gateway.run(f"""
        dalsegno.TERMINATION_LOG = pathlib.Path({str(log)!r})
        Run.attach().fail("no such page: \\ud800", fatal=True)
    """)
    assert (code, json.loads(log.read_text())["message"]) == (1, "no such page: ?")
    fenced = {"code": "FENCED", "detail": "\ud800"}
    gateway.script["attach"] = [Answer(409, fenced)]
    assert gateway.run("Run.attach()") == (1, "", "dalsegno: FENCED: ?\n")
