"""The example deploy/examples/approval: it asks before it pays, and a later process goes on from the answer."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from scripted_gateway import HEAD, Answer, ScriptedGateway, attached, claimed, committed, ok

PURCHASE = Path(__file__).parents[3] / "deploy" / "examples" / "approval" / "purchase.py"
PLAN = {"item": "nails", "cents": 500, "why": "nails is on the list, and 5.00 is what it costs."}
AT = "2026-11-26T12:00:00Z"

pytestmark = pytest.mark.skipif(not PURCHASE.exists(), reason="the package is tested outside of its repository")


@pytest.fixture
def ledger() -> Iterator[list[dict[str, Any]]]:
    """The entries of a ledger; the first one has its address."""
    entries: list[dict[str, Any]] = []

    class Ledger(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            entries.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Ledger)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    entries.append({"url": f"http://127.0.0.1:{server.server_port}"})
    yield entries
    server.shutdown()
    server.server_close()


def run(gateway: ScriptedGateway, tmp_path: Path, ledger: list[dict[str, Any]]) -> tuple[int, str, str]:
    script = {"wishes": [{"item": "nails", "cents": 500}], "ledger": ledger[0]["url"]}
    (tmp_path / "input").write_text(json.dumps(script))
    agent = subprocess.run([sys.executable, PURCHASE], env=gateway.env, capture_output=True, text=True, timeout=30)
    return agent.returncode, agent.stdout, agent.stderr


def wait(**answer: Any) -> dict[str, Any]:
    answered = {"state": "answered", "answer": {"at": AT, "by": "ann", **answer}} if answer else {"state": "open"}
    return {"id": "buy-1", "kind": "approval", **answered}


def resume(gateway: ScriptedGateway, decided: dict[str, Any]) -> None:
    """The next process finds the plan of turn 1 and the answer."""
    state = {"state": {"value": {"json": {"messages": [], "bought": [], "plan": PLAN}}}}
    head = {**HEAD, "boundary": "plan"}
    gateway.script["attach"] = [attached(attempt=2, decision="resume", head=head, state=state, waits=[decided])]
    gateway.script["waits/buy-1"] = [Answer(200, decided)]
    gateway.script["turns/1"] = [committed(1)]
    gateway.script["finish"] = [ok(result="ok")]


def test_the_agent_plans_asks_and_parks(
    gateway: ScriptedGateway, tmp_path: Path, ledger: list[dict[str, Any]]
) -> None:
    gateway.script["turns/1/plan"] = [committed(1, "plan")]
    gateway.script["waits/buy-1"] = [Answer(200, wait())]
    gateway.script["park"] = [Answer(200, {"result": "parked"})]
    code, out, err = run(gateway, tmp_path, ledger)
    assert (code, err) == (0, "") and out.endswith("turn 1 asks: Buy nails for 5.00\n")
    asked = json.loads(gateway.bodies("waits/buy-1")[0])
    assert (asked["proposal"], asked["summary"], asked["deadlineSeconds"]) == (PLAN, PLAN["why"], 86_400)
    assert len(ledger) == 1, "nothing is paid"


@pytest.mark.parametrize(
    ("answer", "cents"),
    [({"outcome": "approved"}, 500), ({"outcome": "changed", "changes": {"cents": 400}}, 400)],
)
def test_an_approved_purchase_is_paid_under_its_approval(
    gateway: ScriptedGateway, tmp_path: Path, ledger: list[dict[str, Any]], answer: dict[str, Any], cents: int
) -> None:
    resume(gateway, wait(**answer))
    gateway.script["calls/pay-1/claim"] = [claimed("go", arguments={**PLAN, "cents": cents})]
    gateway.script["calls/pay-1/complete"] = [ok()]
    code, out, err = run(gateway, tmp_path, ledger)
    assert (code, err) == (0, "") and f"turn 1: {answer['outcome']} by ann\n" in out
    claim = json.loads(gateway.bodies("calls/pay-1/claim")[0])
    assert (claim["approval"], claim["arguments"]["cents"]) == ("buy-1", cents)
    assert [(it["key"], it["note"]) for it in ledger[1:]] == [("k1", f"nails for {cents} cents")]
    said = json.loads(gateway.bodies("turns/1")[0])["state"]["messages"][0]
    assert said["role"] == "user" and said["content"].startswith(f"ann answered: {answer['outcome']}.")


@pytest.mark.parametrize("outcome", ["denied", "timedOut"])
def test_a_purchase_that_nobody_approved_is_not_paid(
    gateway: ScriptedGateway, tmp_path: Path, ledger: list[dict[str, Any]], outcome: str
) -> None:
    resume(gateway, wait(outcome=outcome))
    assert run(gateway, tmp_path, ledger)[0] == 0
    assert len(ledger) == 1 and "calls/pay-1/claim" not in gateway.script
    assert json.loads(gateway.bodies("finish")[0])["finish"]["output"] == {"bought": []}


@pytest.mark.parametrize("changes", [{"cents": 20_000}, {"cents": "500"}, 7])
def test_changes_outside_of_the_agents_policy_stop_it(
    gateway: ScriptedGateway, tmp_path: Path, ledger: list[dict[str, Any]], changes: Any
) -> None:
    resume(gateway, wait(outcome="changed", changes=changes))
    code, _, err = run(gateway, tmp_path, ledger)
    assert code == 1 and "fatal: the changes are not within this agent's policy" in err
    assert len(ledger) == 1
