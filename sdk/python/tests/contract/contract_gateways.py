"""The two gateways that have to answer alike, and a worker that sends them requests without the SDK."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import uuid
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dalsegno.testing.memory import MemoryGateway


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

    def suspend(self) -> None:
        """A person suspends the run."""
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

    def suspend(self) -> None:
        self.gateway.suspend()

    def close(self) -> None:
        self.gateway.close()


class DevWorker(ContractGateway):
    """A real gateway on SQLite: that of `dalsegno dev`, whose worker is idle."""

    def __init__(self, program: str, directory: Path) -> None:
        super().__init__()
        self.program, self.directory, self.pod = program, directory, directory / "pod"
        worker = [sys.executable, str(Path(__file__).with_name("idle_worker.py")), str(self.pod)]
        with (directory / "log").open("w") as log:
            self.process = subprocess.Popen([program, "dev", "--", *worker], cwd=directory, stdout=log, stderr=log)
        self._await_pod()

    def next_attempt(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._await_pod()

    def approve(self, id: str, reason: str) -> None:
        self._people("approve", id, "--reason", reason)

    def send(self, value: str, topic: str) -> None:
        self._people("send", value, "--topic", topic)

    def suspend(self) -> None:
        self._people("suspend")

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=20)

    def _people(self, *words: str) -> None:
        subprocess.run([self.program, "dev", *words], cwd=self.directory, check=True, capture_output=True, timeout=20)

    def _await_pod(self) -> None:
        end = time.monotonic() + 20
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
