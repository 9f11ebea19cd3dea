"""An agent under `dalsegno dev --kill-every`: a real gateway, real processes, and kills."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dalsegno
from conftest import dev_program

SOURCES = Path(dalsegno.__file__).parents[1]

SECONDS = 1200
"""How long it may take. Importing a framework takes a second of a free processor, and minutes on a busy machine."""

KILLED = "killed by --kill-every"


@dataclass(frozen=True)
class Survived:
    """How an example has ended."""

    output: str
    attempts: int
    kills: int
    approved: int

    def asked_at_most(self, times: int) -> int:
        """How often the model may be asked, if it is asked so many times without a kill: once more in each attempt."""
        return times + self.attempts - 1


def survive_kills(
    example: Path,
    directory: Path,
    input: Mapping[str, Any],
    environment: Mapping[str, str],
    waits: str = "",
    interval: int = 4,
) -> Survived:
    """Runs the example until it has ended. Its approvals, whose ids match `waits`, are approved.

    It is killed every `interval` seconds, so its tools must take longer altogether. Each second kill doubles
    the interval: on a machine of any speed it gets as far as its first tool in the end.
    """
    program = dev_program()
    (directory / "input.json").write_text(json.dumps(input))
    variables = {**os.environ, "PYTHONPATH": str(SOURCES), **environment}
    end, approved, output = time.monotonic() + SECONDS, 0, ""
    while True:
        options = ["--input", "input.json", "--kill-every", f"{interval}s"]
        command = [program, "dev", *options, "--", sys.executable, str(example)]
        log = directory / f"log-{interval}"
        with log.open("w") as file:
            dev = subprocess.Popen(command, cwd=directory, env=variables, stdout=file, stderr=file)
        try:
            while dev.poll() is None and log.read_text().count(KILLED) < 2:
                assert time.monotonic() < end, output + log.read_text()
                if waits:
                    approved += _approve(program, directory, waits)
                time.sleep(0.2)
        finally:
            dev.terminate()
            code = dev.wait(timeout=120)
        said = log.read_text()
        output += said
        if has_succeeded(said):
            assert code == 0 or said.count(KILLED) >= 2, f"exit code {code}:\n{output}"
            break
        assert KILLED in said or "DisruptionsExhausted" in said, f"exit code {code}:\n{output}"
        interval *= 2
    attempts = len(re.findall(r"^dalsegno: attempt \d+ (?:starts|resumes) at", output, re.MULTILINE))
    return Survived(output, attempts, output.count(KILLED), approved)


def has_succeeded(said: str) -> bool:
    """Whether the run is over. If nobody knows how, the same command says it. Errors: `AssertionError` if it failed."""
    over = re.search(r"the run is over [^,\n]*, (\w+)", said)
    assert over is None or over[1] == "Succeeded", said
    return over is not None


def _approve(program: str, directory: Path, waits: str) -> int:
    """Approves what is open. Returns how much was."""
    command = [program, "dev", "approve"]
    shown = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120).stdout
    ids = {found.rstrip(":,") for found in re.findall(rf"(?<!\S){waits}\S+", shown)}
    done = [subprocess.run([*command, id], cwd=directory, capture_output=True, timeout=120).returncode for id in ids]
    return done.count(0)
