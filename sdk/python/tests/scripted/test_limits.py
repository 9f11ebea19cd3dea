"""Limits: the worker exits between two steps."""

from scripted_gateway import ScriptedGateway, attached, committed, ok


def test_a_check_at_a_limit_exits_with_0(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(limit=True)]
    code, out, err = gateway.run("""
        Run.attach(heartbeat=False).check()
        print("goes on")
    """)
    assert (code, out, err) == (0, "", "")
    assert "park" not in gateway.script


def test_a_limit_in_the_answer_to_a_commit_ends_the_loop(gateway: ScriptedGateway) -> None:
    gateway.script["turns/1"] = [committed(1, limit=True)]
    code, out, err = gateway.run("""
        run = Run.attach(heartbeat=False)
        while True:
            run.check()
            print(run.next_turn)
            run.commit(run.next_turn, state=1)
    """)
    assert (code, out, err) == (0, "1\n", "")


def test_a_limit_heard_by_heartbeat_ends_the_loop(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(heartbeatSeconds=0.05)]
    gateway.script["heartbeat"] = [ok(), ok(limit=True)]
    code, out, err = gateway.run("""
        run = Run.attach()
        while True:
            run.check()
            time.sleep(0.05)
    """)
    assert (code, out, err) == (0, "", "")


def test_a_raised_limit_is_taken_from_the_next_answer(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(limit=True)]
    gateway.script["turns/1"] = [committed(1, limit=False)]
    code, out, err = gateway.run("""
        run = Run.attach(heartbeat=False)
        print(run.at_limit)
        run.commit(1, state=1)
        run.check()
        print(run.at_limit)
    """)
    assert (code, out, err) == (0, "True\nFalse\n", "")
