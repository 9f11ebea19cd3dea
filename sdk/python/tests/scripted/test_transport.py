"""Requests: how they are repeated, on which connection, and what counts as an answer."""

import time
from functools import partial

import pytest

from scripted_gateway import NO_ANSWER, Answer, ScriptedGateway, attached, committed, problem


def test_all_turns_use_one_connection_and_so_one_gateway(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [attached(heartbeatSeconds=0.05)]
    for turn in (1, 2, 3):  # a heartbeat comes during each
        path = f"turns/{turn}"
        gateway.script[path] = [committed(turn).but(until=partial(gateway.beats_since, path))]
    code, _, err = gateway.run("""
        run = Run.attach()
        for turn in (1, 2, 3):
            run.commit(turn, state=turn)
    """)
    assert (code, err) == (0, "")
    beats = set(gateway.ports.pop("heartbeat"))
    others = {port for ports in gateway.ports.values() for port in ports}
    assert len(beats) == len(others) == 1 and beats != others


def test_a_connection_that_the_gateway_closed_is_replaced_at_once_and_silently(gateway: ScriptedGateway) -> None:
    gateway.script |= {"turns/1": [committed(1).but(closes=True)], "turns/2": [committed(2)]}
    code, out, err = gateway.run("""
        run = Run.attach(heartbeat=False)
        run.commit(1, state=1)
        time.sleep = print
        run.commit(2, state=2)
    """)
    assert (code, out, err) == (0, "0.0\n", "")
    assert len(gateway.bodies("turns/2")) == 1 and gateway.ports["turns/1"] != gateway.ports["turns/2"]


def test_a_forked_process_has_its_own_connection(gateway: ScriptedGateway) -> None:
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


FAULTS = [
    problem(503, "UNAVAILABLE"),
    problem(503, "STORAGE_FULL"),
    problem(429, "TOO_MANY_REQUESTS"),
    Answer(502, "nginx"),
    NO_ANSWER,
    Answer(200, b"<html>"),
    Answer(200, b""),
    Answer(200, b"null"),
    Answer(200, b'{"head": {"turn"'),
    Answer(200, b"\x1f\x8b"),
    Answer(200, {}, {"Content-Length": "99", "Connection": "close"}),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_commit_without_an_answer_is_sent_again_as_the_same_bytes(gateway: ScriptedGateway, fault: Answer) -> None:
    gateway.script["turns/1"] = [fault, fault, committed(1)]
    code, _, err = gateway.run("Run.attach().commit(1, state={'n': 1.5})")
    assert (code, err) == (0, "")
    first, *others = gateway.bodies("turns/1")
    assert others == [first, first]
    assert len(set(gateway.ports["turns/1"])) == 3, "each time on a new connection: it may lead to a gateway that can"


@pytest.mark.parametrize("answer", [Answer(302, {}, {"Location": "/"}), Answer(204, b""), Answer(404, "nginx")])
def test_an_answer_that_is_not_the_gateways_is_not_taken_for_success(gateway: ScriptedGateway, answer: Answer) -> None:
    gateway.script["records"] = [answer]
    code, out, _ = gateway.run("""
        try:
            Run.attach().write()
        except Refused as refused:
            print(refused.code)
    """)
    assert (code, out) == (0, f"HTTP_{answer.status}\n")


def test_a_request_that_cannot_be_sent_is_not_retried(gateway: ScriptedGateway) -> None:
    gateway.env["DALSEGNO_URL"] += " "
    code, _, err = gateway.run("Run.attach()")
    assert code == 1 and "InvalidURL" in err


def test_a_body_above_the_limit_is_refused_before_it_is_sent(gateway: ScriptedGateway) -> None:
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


def test_retry_after_is_honoured(gateway: ScriptedGateway) -> None:
    gateway.script["attach"] = [problem(503, "NOT_READY", Retry_After="1"), attached()]
    began = time.monotonic()
    assert gateway.run("Run.attach()")[0] == 0
    assert time.monotonic() - began >= 1


def test_a_retry_after_that_is_not_a_number_is_ignored(gateway: ScriptedGateway) -> None:
    odd = [problem(503, "NOT_READY", Retry_After=when) for when in ("Fri, 31 Dec 2100 23:59:59 GMT", "\xb2")]
    gateway.script["attach"] = [*odd, attached()]
    assert gateway.run("Run.attach()")[::2] == (0, "")


def test_neither_a_wait_nor_a_refusal_names_a_call_or_a_record_in_a_log(gateway: ScriptedGateway) -> None:
    for path in "calls/canary-1/claim", "records?space=canary-2&prefix=canary-3":
        gateway.script[path] = [*[problem(503, "UNAVAILABLE")] * 8, problem(400, "INVALID")]
    code, _, err = gateway.run("""
        time.sleep = lambda seconds: None
        run, id, space, prefix = Run.attach(), "canary-1", "canary-2", "canary-3"
        try:
            run.call(id, policy="ask", tool=print)
        except Refused as refused:
            print(refused, file=sys.stderr)
        next(run.space(space).items(prefix))  # a traceback shows this line
    """)
    assert code == 1 and "canary" not in err
    for call in "calls/*/claim", "records":
        assert f"{call}: no answer yet (503)" in err and f"'{call}: because'" in err
