"""A framework stores its state in a run's records: its own suite against a real gateway on SQLite.

The client's own records are tested there too.

`DALSEGNO_SERVE` names the gateway's example `serve`. These tests run only in an environment that has the framework's
packages.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("claude_agent_sdk.testing")
sys.path.insert(0, str(Path(__file__).parent))

from claude_agent_sdk.testing import run_session_store_conformance

from claude_sessions import RecordSessionStore
from dalsegno import Operation, Refused, Run
from dalsegno._wire import Refusal


class Worker(Run[Any]):
    """A worker that raises `Refused` where a refusal would end its process."""

    def _on_refusal(self, name: str, refusal: Refusal) -> None:
        raise Refused(refusal.code, refusal.detail)


class GatewayProcess:
    """A gateway with one run, whose pods are lost on demand."""

    def __init__(self, directory: Path, environment: pytest.MonkeyPatch) -> None:
        self.directory, self.environment = directory, environment
        command = [os.environ["DALSEGNO_SERVE"], str(directory / "runs.db")]
        self.process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin and self.process.stdout
        self.stdin: IO[str] = self.process.stdin
        self.stdout: IO[str] = self.process.stdout

    def attach(self) -> Worker:
        """The worker of the pod that has just been started."""
        pod = json.loads(self.stdout.readline())
        self.environment.setenv("DALSEGNO_URL", pod["url"])
        for name, text in (("token", pod["token"]), ("input", "")):
            file = self.directory / name
            file.write_text(text)
            self.environment.setenv(f"DALSEGNO_{name.upper()}_FILE", str(file))
        return Worker.attach(heartbeat=False, sigterm=False)

    def lose_pod(self) -> None:
        self.stdin.write("\n")
        self.stdin.flush()

    def close(self) -> None:
        self.stdin.close()
        self.process.wait(timeout=10)


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess(tmp_path, monkeypatch)
    yield gateway
    gateway.close()


def test_a_session_store_conforms(gateway: GatewayProcess) -> None:
    run, names = gateway.attach(), itertools.count()
    # Each case of the suite wants an empty store: a space that no other case uses.
    asyncio.run(run_session_store_conformance(lambda: RecordSessionStore(run, f"sessions-{next(names)}")))
    assert next(names) > 14


def test_an_entry_that_is_written_twice_is_stored_once(gateway: GatewayProcess) -> None:
    store, key = RecordSessionStore(gateway.attach()), {"project_key": "p", "session_id": "s"}
    entry = {"type": "user", "uuid": "u1"}
    asyncio.run(store.append(key, [entry]))
    asyncio.run(store.append(key, [entry, {"type": "user", "uuid": "u2"}]))
    assert [entry["uuid"] for entry in asyncio.run(store.load(key)) or []] == ["u1", "u2"]


def test_a_session_store_is_refused_under_a_second_epoch(gateway: GatewayProcess) -> None:
    key = {"project_key": "p", "session_id": "s"}
    store = RecordSessionStore(gateway.attach())
    asyncio.run(store.append(key, [{"type": "user", "uuid": "u1"}]))
    gateway.lose_pod()
    second = RecordSessionStore(gateway.attach())
    for write in (store.append(key, [{"type": "user", "uuid": "u2"}]), store.delete(key)):
        with pytest.raises(Refused) as refused:
            asyncio.run(write)
        assert refused.value.code == "FENCED"
    assert asyncio.run(second.load(key)) == [{"type": "user", "uuid": "u1"}]


def test_the_client_reads_what_it_wrote(gateway: GatewayProcess) -> None:
    run = gateway.attach()
    run.write(*(Operation.append("a b", "ä+", f"e{n}", n) for n in range(1_000)))
    run.write(Operation.put_if_absent("a b", "ä+", "late"), Operation.delete("a b", "x"))
    run.commit(1, state=1, records=[Operation.put("a b", "b", {"of": "a turn"})])
    assert [item.value for item in run.space("a b").items("ä")] == list(range(1_000))
    entry, *others = run.space("a b").items("b")
    assert (entry.key, entry.value, entry.turn, others) == ("b", {"of": "a turn"}, 1, [])
