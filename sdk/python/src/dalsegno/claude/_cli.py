"""The CLI ends with its process.

The CLI of a process that was killed reads the end of its input, tells the model that the tool was interrupted, and acts
on the answer: a second agent, beside the next attempt. In a pod it dies with the container. Elsewhere Linux kills it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import claude_agent_sdk

LAUNCHER = """#!{python} -IS
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != {parent}:
    os._exit(1)
os.execv({cli!r}, [{cli!r}, *sys.argv[1:]])
"""

_launchers: dict[str, str] = {}


def bound_cli(given: str | Path | None) -> str | Path | None:
    """The path of a program that starts the CLI so that it is killed when this process dies.

    given: the path that the agent has chosen, if any. It is returned where there is no such program: on another system
    than Linux, and where the folder for temporary files holds no programs.
    """
    cli = str(given) if given is not None else _find()
    if not sys.platform.startswith("linux") or cli is None:
        return given
    if cli not in _launchers:
        _launchers[cli] = _write(os.path.abspath(cli))
    return _launchers[cli] if os.access(_launchers[cli], os.X_OK) else given


def _find() -> str | None:
    """The CLI that the SDK would find first."""
    bundled = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    return str(bundled) if bundled.is_file() else shutil.which("claude")


def _write(cli: str) -> str:
    folder = tempfile.mkdtemp(prefix="dalsegno-claude-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    launcher = Path(folder) / "claude"
    launcher.write_text(LAUNCHER.format(python=sys.executable, parent=os.getpid(), cli=cli))
    launcher.chmod(0o700)
    return str(launcher)
