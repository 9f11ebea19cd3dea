"""The two gateways that have to answer alike, and a worker that sends them requests without the SDK."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dalsegno.testing.memory import MemoryGateway
from dalsegno.testing.memory._checks import USAGE, Problem

LONGEST_SECONDS = 60
"""Of what a gateway does by itself, on a machine with much other work."""


class ContractGateway:
    """A gateway with one run. `url` and `token` are those of the current attempt."""

    url: str
    token: str

    def __init__(self) -> None:
        self.instance = ""

    def next_attempt(self) -> None:
        """The pod is lost, and the next attempt begins."""
        raise NotImplementedError

    def approve(self, id: str, reason: str) -> None:
        """A person approves."""
        raise NotImplementedError

    def send(self, value: str, topic: str) -> None:
        """A person sends a message."""
        raise NotImplementedError

    def settle(self, id: str, outcome: str) -> bool:
        """A person settles a call. Whether the gateway took it."""
        raise NotImplementedError

    def suspend(self) -> None:
        """A person suspends the run."""
        raise NotImplementedError

    def cancel(self) -> None:
        """A person cancels the run."""
        raise NotImplementedError

    def lose(self) -> None:
        """The pod is lost, and the run gets no other one by itself."""
        raise NotImplementedError

    def await_no_pod(self) -> str:
        """Waits until the run gets no more pods. Returns `held`, or the outcome and the reason of the run's end."""
        raise NotImplementedError

    def usage(self) -> dict[str, int]:
        """What the run has spent, by the names of the contract."""
        raise NotImplementedError

    def close(self) -> None:
        """Stops to serve."""

    def attach(self) -> dict[str, Any]:
        """Attaches a new process, whose secret is the bearer from now on."""
        self.instance = secrets.token_urlsafe(32)
        status, answer = self.post("attach", {"instance": self.instance}, bearer=self.token)
        assert status == 200, answer
        attached: dict[str, Any] = answer
        return attached

    def restart(self) -> dict[str, Any]:
        """The pod is lost, and the process of the next one attaches."""
        self.next_attempt()
        return self.attach()

    def await_flag(self, flag: str) -> None:
        """Waits until a heartbeat says so."""
        end = time.monotonic() + LONGEST_SECONDS
        while not self.post("heartbeat")[1][flag]:
            assert time.monotonic() < end, flag
            time.sleep(0.05)

    def await_fence(self) -> None:
        """Waits until the current process is fenced."""
        end = time.monotonic() + LONGEST_SECONDS
        while self.said("heartbeat") != "FENCED":
            assert time.monotonic() < end
            time.sleep(0.05)

    def post(
        self, path: str, body: Any = None, *, bearer: str | None = None, raw: bytes | None = None
    ) -> tuple[int, Any]:
        """Status and body of an answer."""
        return self._request(
            "POST", path, raw if raw is not None else json.dumps(body).encode() if body is not None else b"", bearer
        )

    def get(self, path: str) -> tuple[int, Any]:
        """Status and body of an answer."""
        return self._request("GET", path, b"", None)

    def said(self, path: str, body: Any = None, *, raw: bytes | None = None) -> str:
        """What an answer says in a word: a result, a verdict, or the code of a refusal."""
        status, answer = self.post(path, body, raw=raw)
        if status != 200:
            return str(answer["code"])
        return str(answer.get("result") or answer.get("verdict") or answer.get("state") or "ok")

    def _request(self, method: str, path: str, body: bytes, bearer: str | None) -> tuple[int, Any]:
        url = urlsplit(self.url)
        connection = HTTPConnection(url.netloc, timeout=30)
        headers = {"Authorization": f"Bearer {bearer or self.instance}"}
        connection.request(method, f"{url.path}/{path}", body, headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, json.loads(text)


class MemoryWorker(ContractGateway):
    """The gateway in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.gateway = MemoryGateway()
        self.next_attempt()
        self.url = self.gateway.environment["DALSEGNO_URL"]

    def next_attempt(self) -> None:
        self.gateway.end_attempt()
        self.gateway.start_attempt()
        self.token = Path(self.gateway.environment["DALSEGNO_TOKEN_FILE"]).read_text()

    def approve(self, id: str, reason: str) -> None:
        self.gateway.approve(id, reason=reason)

    def send(self, value: str, topic: str) -> None:
        self.gateway.send(value, topic)

    def settle(self, id: str, outcome: str) -> bool:
        try:
            self.gateway.settle(id, outcome)
        except Problem:
            return False
        return True

    def suspend(self) -> None:
        self.gateway.suspend()

    def cancel(self) -> None:
        self.gateway.cancel()

    def lose(self) -> None:
        self.gateway.end_attempt()

    def await_no_pod(self) -> str:
        end = time.monotonic() + LONGEST_SECONDS
        while not (why := self.gateway.why_no_process).startswith(("it is held", "it has ended")):
            assert time.monotonic() < end, why
            time.sleep(0.05)
            self.gateway.advance(0)
        finish = self.gateway.finish or {"outcome": "cancelled", "reason": "Cancelled"}
        return f"{finish['outcome']}: {finish['reason']}" if why == "it has ended" else "held"

    def usage(self) -> dict[str, int]:
        return {name: self.gateway.rows.usage.get(name, 0) for name in USAGE}

    def close(self) -> None:
        self.gateway.close()


class DevWorker(ContractGateway):
    """A real gateway on SQLite: that of `dalsegno dev`, whose worker is idle."""

    def __init__(self, program: str, directory: Path) -> None:
        super().__init__()
        self.program, self.directory, self.pod = program, directory, directory / "pod"
        self._start()
        self._await_pod()

    def next_attempt(self) -> None:
        if self.process.poll() is None:
            self.lose()
        else:
            self._start()
        self._await_pod()

    def approve(self, id: str, reason: str) -> None:
        self._people("approve", id, "--reason", reason)

    def send(self, value: str, topic: str) -> None:
        self._people("send", value, "--topic", topic)

    def settle(self, id: str, outcome: str) -> bool:
        words = ["settle", "--database-url", f"sqlite://{self._database}", "--outcome", outcome, "--reason", "looked"]
        ended = subprocess.run(
            [self.program, *words, "dev/agent", id], capture_output=True, text=True, timeout=LONGEST_SECONDS
        )
        assert ended.returncode == 0 or "current attempt may still complete" in ended.stderr, ended.stderr
        return ended.returncode == 0

    def suspend(self) -> None:
        self._people("suspend")

    def cancel(self) -> None:
        """`dalsegno dev` has no verb for it. The row is all that the gateway looks at."""
        with sqlite3.connect(self._database, timeout=LONGEST_SECONDS) as database:
            database.execute("UPDATE runs SET cancel_requested_at = ?", [int(time.time() * 1_000)])
        database.close()

    def lose(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def await_no_pod(self) -> str:
        self.process.wait(timeout=LONGEST_SECONDS)
        said = (self.directory / "log").read_text()
        if "held: " in said:
            return "held"
        _, _, end = said.rpartition("the run is over ")
        _, outcome, reason, *_ = end.replace(";", ":").replace(", ", ": ").split(": ")
        return f"{outcome.lower()}: {reason}"

    def usage(self) -> dict[str, int]:
        with sqlite3.connect(self._database, timeout=LONGEST_SECONDS) as database:
            columns = "tokens_in, tokens_out, tool_calls, cost_micro_usd"
            [spent] = database.execute(f"SELECT {columns} FROM runs")
        database.close()
        return dict(zip(USAGE, spent))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=LONGEST_SECONDS)

    @property
    def _database(self) -> Path:
        return self.directory / ".dalsegno" / "runs.db"

    def _start(self) -> None:
        worker = [sys.executable, str(Path(__file__).with_name("idle_worker.py")), str(self.pod)]
        with (self.directory / "log").open("w") as log:
            self.process = subprocess.Popen(
                [self.program, "dev", "--", *worker], cwd=self.directory, stdout=log, stderr=log
            )

    def _people(self, *words: str) -> None:
        subprocess.run(
            [self.program, "dev", *words], cwd=self.directory, check=True, capture_output=True, timeout=LONGEST_SECONDS
        )

    def _await_pod(self) -> None:
        end = time.monotonic() + LONGEST_SECONDS
        while not self.pod.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"no process was started:\n{(self.directory / 'log').read_text()}")
            time.sleep(0.02)
        place = json.loads(self.pod.read_text())
        self.pod.unlink()
        self.url, self.token, self.pid = place["url"], place["token"], place["pid"]


def uid() -> str:
    """A new UUID."""
    return str(uuid.uuid4())


def boundary(**more: Any) -> dict[str, Any]:
    """A boundary with a small state."""
    return {"commitId": uid(), "state": {"n": 1}, **more}


def claim(policy: str = "retrySameKey", **more: Any) -> dict[str, Any]:
    """The claim of a call that is new."""
    return {"claimId": uid(), "policy": policy, "key": "k1", **more}


def approval(**more: Any) -> dict[str, Any]:
    """A wait for an approval."""
    return {"kind": "approval", "title": "Pay", "proposal": 1, **more}


def batch(*operations: dict[str, Any]) -> dict[str, Any]:
    """A batch of records."""
    return {"batchId": uid(), "operations": [*operations]}


def put(key: str, value: Any = 1) -> dict[str, Any]:
    """An operation in the space `s`."""
    return {"put": {"space": "s", "key": key, "value": {"json": value}}}
