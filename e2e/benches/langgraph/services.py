"""What the bench needs around it: a PostgreSQL server, `dalsegno` as two processes, and runs with an attached worker."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import dalsegno
import psycopg

T = TypeVar("T")

NAMESPACE = "bench-langgraph"

READY_SECONDS = 120

# A run with an inline agent, whose pod is on a fake node. The image is named by digest, because a fake node does not
# report an image's digest. The deadlines are longer than the bench.
AGENT = {
    "agentVersion": "1",
    "template": {
        "spec": {
            "containers": [
                {
                    "name": "agent",
                    "image": f"registry.example/agent@sha256:{'1' * 64}",
                    "resources": {"requests": {"cpu": "5m", "memory": "16Mi"}},
                }
            ]
        }
    },
}
LIVENESS = {"startDeadlineSeconds": 86_400, "progressDeadlineSeconds": 86_400}

# The rows of a run in every table that has some, as the benchmark counts the rows of LangGraph's saver.
TABLES_WITH_RUNS = """
    SELECT table_name FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
    WHERE table_schema = current_schema() AND table_type = 'BASE TABLE' AND column_name = 'run' AND data_type = 'uuid'
"""


@contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL server of its own, with the settings of a new installation. Yields its URL without a database."""
    directory, port = Path(tempfile.mkdtemp(prefix="dalsegno-bench-pg.")), free_port()
    as_user: dict[str, Any] = {}
    if os.getuid() == 0:  # PostgreSQL does not run as root
        as_user = {"user": "postgres", "group": pwd.getpwnam("postgres").pw_gid, "extra_groups": []}
        shutil.chown(directory, "postgres")
    data = directory / "data"
    settings = ["listen_addresses=127.0.0.1", f"port={port}", f"unix_socket_directories={directory}"]
    with (directory / "log").open("wb") as log:
        initdb = ["initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        subprocess.run(initdb, stdout=log, stderr=log, check=True, cwd="/", **as_user)
        options = [part for setting in settings for part in ("-c", setting)]
        server = subprocess.Popen(["postgres", "-D", data, *options], stdout=log, stderr=log, cwd="/", **as_user)
    url = f"postgres://postgres@127.0.0.1:{port}"
    try:
        eventually("PostgreSQL", server, lambda: psycopg.connect(f"{url}/postgres", connect_timeout=1).close() or True)
        yield url
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(directory)


@contextmanager
def dalsegno_on(database: str) -> Iterator[None]:
    """An operator and a gateway of `DALSEGNO_PROGRAM` with this store and the control plane of `DALSEGNO_BENCH_DIR`."""
    program, directory = os.environ["DALSEGNO_PROGRAM"], Path(os.environ["DALSEGNO_BENCH_DIR"])
    common = {**os.environ, "DALSEGNO_DATABASE_URL": database}
    subprocess.run([program, "migrate"], env=common, check=True, stderr=subprocess.DEVNULL)
    gateway, processes = free_port(), list[subprocess.Popen[bytes]]()
    try:
        for role in ("operator", "gateway"):
            health = free_port()
            environment = {
                **common,
                "KUBECONFIG": str(directory / f"{role}.kubeconfig"),
                "DALSEGNO_GATEWAY_LISTEN": f"127.0.0.1:{gateway}",
                "DALSEGNO_GATEWAY_URL": f"http://127.0.0.1:{gateway}",
                "DALSEGNO_HEALTH_LISTEN": f"127.0.0.1:{health}",
            }
            with (directory / f"dalsegno-{role}.log").open("wb") as log:
                processes.append(subprocess.Popen([program, role], env=environment, stderr=log))
            ready = f"http://127.0.0.1:{health}/readyz"
            eventually(role, processes[-1], lambda: urllib.request.urlopen(ready, timeout=5).status == 200)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def worker(name: str) -> Iterator[dalsegno.Run[Any]]:
    """A new run of this name, whose worker is this process. It succeeds at the end."""
    run = {
        "apiVersion": "dalsegno.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"agent": AGENT, "input": {"task": "bench"}, "liveness": LIVENESS},
    }
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(run))
    pod: dict[str, Any] = {}

    def runs() -> bool:
        pod.update(json.loads(kubectl("get", "pod", f"{name}-1", "-o", "json")))
        return bool(pod["status"].get("phase") == "Running")

    eventually(f"the pod of {name}", None, runs)
    variables = pod["spec"]["containers"][0]["env"]
    token = kubectl(
        "create", "token", pod["spec"].get("serviceAccountName", "default"), "--audience", "dalsegno",
        "--bound-object-kind", "Pod", "--bound-object-name", f"{name}-1", "--bound-object-uid", pod["metadata"]["uid"],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        files = {"DALSEGNO_TOKEN_FILE": token, "DALSEGNO_INPUT_FILE": '{"task": "bench"}'}
        for variable, content in files.items():
            (file := Path(directory) / variable).write_text(content)
            os.environ[variable] = str(file)
        os.environ["DALSEGNO_URL"] = next(it["value"] for it in variables if it["name"] == "DALSEGNO_URL")
        with dalsegno.attach(sigterm=False) as attached:
            yield attached
            attached.finish()


def stored_bytes(database: str, run: str) -> int:
    """The bytes of all rows of a run, measured as the benchmark measures those of LangGraph's saver."""
    with psycopg.connect(database) as connection:
        tables = [table for (table,) in connection.execute(TABLES_WITH_RUNS)]
        assert {"boundaries", "records"} <= {*tables}, tables
        sums = [f"SELECT coalesce(sum(pg_column_size(it.*)), 0) FROM {table} it WHERE run = %(run)s" for table in tables]
        found = connection.execute(" UNION ALL ".join(sums), {"run": run})
        return sum(int(amount) for (amount,) in found)


def kubectl(*words: str, stdin: str | None = None) -> str:
    """What `kubectl` prints, in the namespace of the bench."""
    program = Path(os.environ["DALSEGNO_BENCH_DIR"]) / "kubectl"
    command = [program, "--namespace", NAMESPACE, *words]
    return subprocess.run(command, input=stdin, check=True, capture_output=True, text=True).stdout


def eventually(what: str, process: subprocess.Popen[bytes] | None, ready: Callable[[], bool]) -> None:
    """Waits until `ready` returns true. It may raise meanwhile. Fails if the process ends."""
    deadline, last = time.monotonic() + READY_SECONDS, "it is not ready"
    while time.monotonic() < deadline and (process is None or process.poll() is None):
        try:
            if ready():
                return
        except (OSError, psycopg.OperationalError, subprocess.CalledProcessError) as error:
            last = str(error)
        time.sleep(0.1)
    raise SystemExit(f"{what}: {last}")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
