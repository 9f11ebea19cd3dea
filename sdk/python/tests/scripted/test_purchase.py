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

from scripted_gateway import HEAD, LONGEST_SECONDS, Answer, ScriptedGateway, attached, claimed, committed, ok

PURCHASE = Path(__file__).parents[4] / "deploy" / "examples" / "approval" / "agent.py"
ORDER = {"item": "nails", "cents": 500, "supplier": "Bird & Sons"}
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
    (tmp_path / "input").write_text(json.dumps({"item": "nails", "cents": 500, "ledger": ledger[0]["url"]}))
    command = [sys.executable, str(PURCHASE)]
    agent = subprocess.run(command, env=gateway.env, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    return agent.returncode, agent.stdout, agent.stderr


def wait(**answer: Any) -> dict[str, Any]:
    answered = {"state": "answered", "answer": {"at": AT, "by": "ann", **answer}} if answer else {"state": "open"}
    return {"id": "purchase", "kind": "approval", **answered}


def resume(gateway: ScriptedGateway, decided: dict[str, Any]) -> None:
    """The next process finds the order of turn 1 and the answer."""
    state = {"state": {"value": {"json": {"order": ORDER}}}}
    gateway.script["attach"] = [attached(attempt=2, decision="resume", head=HEAD, state=state, waits=[decided])]
    gateway.script["waits/purchase"] = [Answer(200, decided)]
    gateway.script["turns/2"] = [committed(2)]


def end(gateway: ScriptedGateway) -> dict[str, Any]:
    finish: dict[str, Any] = json.loads(gateway.bodies("turns/2")[0])["outcome"]["finish"]
    return finish


def test_the_agent_stores_its_order_asks_and_parks(
    gateway: ScriptedGateway, tmp_path: Path, ledger: list[dict[str, Any]]
) -> None:
    gateway.script["turns/1"] = [committed(1)]
    gateway.script["waits/purchase"] = [Answer(200, wait())]
    gateway.script["park"] = [Answer(200, {"result": "parked"})]
    code, _, err = run(gateway, tmp_path, ledger)
    assert (code, err) == (0, "")
    assert json.loads(gateway.bodies("turns/1")[0])["state"] == {"order": ORDER}
    asked = json.loads(gateway.bodies("waits/purchase")[0])
    assert (asked["kind"], asked["proposal"]) == ("approval", ORDER)
    assert json.loads(gateway.bodies("park")[0])["on"] == ["purchase"]
    assert len(ledger) == 1, "nothing is paid"


@pytest.mark.parametrize(
    ("answer", "cents"),
    [({"outcome": "approved"}, 500), ({"outcome": "changed", "changes": {"cents": 400}}, 400)],
)
def test_an_approved_purchase_is_paid_under_its_approval(
    gateway: ScriptedGateway, tmp_path: Path, ledger: list[dict[str, Any]], answer: dict[str, Any], cents: int
) -> None:
    resume(gateway, wait(**answer))
    gateway.script["calls/pay/claim"] = [claimed("go", arguments={**ORDER, "cents": cents})]
    gateway.script["calls/pay/complete"] = [ok()]
    code, out, err = run(gateway, tmp_path, ledger)
    assert (code, err) == (0, "") and out.endswith(f"paid {cents} cents, approved by ann\n")
    claim = json.loads(gateway.bodies("calls/pay/claim")[0])
    assert (claim["approval"], claim["arguments"]["cents"]) == ("purchase", cents)
    assert [(it["key"], json.loads(it["note"])["cents"]) for it in ledger[1:]] == [("k1", cents)]
    assert end(gateway)["outcome"] == "succeeded"


@pytest.mark.parametrize("outcome", ["denied", "timedOut"])
def test_a_purchase_that_nobody_approved_is_not_paid(
    gateway: ScriptedGateway, tmp_path: Path, ledger: list[dict[str, Any]], outcome: str
) -> None:
    resume(gateway, wait(outcome=outcome))
    assert run(gateway, tmp_path, ledger)[0] == 0
    assert len(ledger) == 1 and end(gateway)["reason"] == "NotApproved"
