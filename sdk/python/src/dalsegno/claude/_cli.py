"""The CLI ends with its process, and when a session leaves it.

A CLI whose tool does not answer any more tells the model that it was interrupted, and acts on what the model says: a
second agent, beside the next attempt. In a pod it dies with the container. Elsewhere Linux kills it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import claude_agent_sdk

LAUNCHER = """#!{python} -IS
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != {parent}:
    os._exit(1)
if "--output-format" in sys.argv:
    with open({pid!r}, "w") as file:
        file.write(str(os.getpid()))
os.execv({cli!r}, [{cli!r}, *sys.argv[1:]])
"""


class Cli:
    """Starts the CLI so that it is killed when this process dies, and kills it.

    Where that is not possible the SDK starts the CLI as always: on another system than Linux, and where the folder for
    temporary files holds no programs.
    """

    def __init__(self, given: str | Path | None) -> None:
        """given: the path that the agent has chosen, if any."""
        self.path = given
        """What to give to the SDK."""
        self._folder: Path | None = None
        cli = str(given) if given is not None else _find()
        if sys.platform.startswith("linux") and cli is not None:
            self._folder = Path(tempfile.mkdtemp(prefix="dalsegno-claude-"))
            launcher = self._folder / "claude"
            fields = {"python": sys.executable, "parent": os.getpid(), "cli": os.path.abspath(cli)}
            launcher.write_text(LAUNCHER.format(pid=str(self._folder / "pid"), **fields))
            launcher.chmod(0o700)
            if os.access(launcher, os.X_OK):
                self.path = launcher

    def kill(self) -> None:
        """Kills the CLI, if it runs."""
        with suppress(OSError, ValueError):
            pid = int(self._pid_file.read_text())
            status = Path(f"/proc/{pid}/status").read_text()
            if f"\nPPid:\t{os.getpid()}\n" in status:  # another process may have the number by now
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Removes the files."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _pid_file(self) -> Path:
        return (self._folder or Path("/nowhere")) / "pid"


def _find() -> str | None:
    """The CLI that the SDK would find first."""
    bundled = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    return str(bundled) if bundled.is_file() else shutil.which("claude")
