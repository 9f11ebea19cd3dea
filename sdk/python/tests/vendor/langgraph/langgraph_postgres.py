"""A PostgreSQL server of its own, for LangGraph's saver. The bench of e2e/benches/langgraph uses it too."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

START_SECONDS = 120


def programs() -> Path | None:
    """The folder of PostgreSQL's programs; `None` where it is not installed."""
    found = shutil.which("postgres")
    # Debian does not put them into the path, and its wrapper in /usr/bin would not be next to `initdb`.
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A server with the settings of a new installation, and the programs of this folder. Yields its URL without a database."""
    directory, port = Path(tempfile.mkdtemp(prefix="dalsegno-pg.")), free_port()
    as_user: dict[str, Any] = {"cwd": "/"}
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        as_user |= {"user": "postgres", "group": pwd.getpwnam("postgres").pw_gid, "extra_groups": []}
        shutil.chown(directory, "postgres")
    data, log = directory / "data", (directory / "log").open("wb")
    with log:
        create = [f"{folder}/initdb", "-D", f"{data}", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        subprocess.run([*create, "--no-sync"], stdout=log, stderr=log, check=True, **as_user)
        settings = ["listen_addresses=127.0.0.1", f"port={port}", f"unix_socket_directories={directory}"]
        serve = [f"{folder}/postgres", "-D", f"{data}", *(part for setting in settings for part in ("-c", setting))]
        server: subprocess.Popen[bytes] = subprocess.Popen(serve, stdout=log, stderr=log, **as_user)
    url = f"postgres://postgres@127.0.0.1:{port}"
    try:
        _await_start(server, f"{url}/postgres", directory / "log")
        yield url
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(directory)


def _await_start(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"PostgreSQL has not started:\n{log.read_text()}") from error
            time.sleep(0.1)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
