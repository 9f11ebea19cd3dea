"""The package as a user gets it: built, installed into an environment that has nothing else, and run by copy and paste."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2]
REPOSITORY = PACKAGE.parents[1]
GUIDES = REPOSITORY / "docs" / "guides"
EXAMPLES = REPOSITORY / "deploy" / "examples"
HATCHLING = "hatchling==1.33.0"

in_repository = pytest.mark.skipif(not GUIDES.exists(), reason="the package is tested outside of its repository")


@dataclass(frozen=True)
class Built:
    """The two files that would be published."""

    sdist: Path
    wheel: Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the variables of a shell that has activated it."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def packages(self) -> Path:
        [found] = self.folder.glob("lib/python3*/site-packages")
        return found

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of a process. Nothing of the clone is in its path."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.endswith("_API_KEY")}
        return {**kept, "PATH": f"{self.folder / 'bin'}{os.pathsep}{kept['PATH']}", **more}

    def run(self, *arguments: str, cwd: Path | None = None, **more: str) -> str:
        """Runs its Python, and returns what it prints."""
        return command([self.python, *arguments], cwd, self.variables(**more))


def command(arguments: Sequence[str], cwd: Path | None, variables: Mapping[str, str], timeout: float = 600) -> str:
    """Runs a program, and returns what it prints. What it printed is in the error if it fails."""
    ended = subprocess.run(
        arguments, cwd=cwd, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )
    assert ended.returncode == 0, f"{' '.join(arguments)}\n{ended.stdout}"
    return ended.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The source distribution, and the wheel that is made of it: not of the clone, which has more files."""
    folder = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    variables = {**os.environ, "PYTHONPATH": builder()}
    command([*build, "-t", "sdist"], PACKAGE, variables)
    [sdist] = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    command([*build, "-t", "wheel"], folder / sdist.name.removesuffix(".tar.gz"), variables)
    [wheel] = folder.glob("*.whl")
    return Built(sdist, wheel)


def builder() -> str:
    """The folder that has Hatchling, or an empty text if this Python has it. It is installed once, outside of the clone."""
    if importlib.util.find_spec("hatchling"):
        return ""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "dalsegno" / HATCHLING.replace("==", "-")
    if not (folder / "complete").exists():
        pip(sys.executable, "install", "--target", str(folder), HATCHLING)
        (folder / "complete").touch()
    return str(folder)


def pip(python: str, *arguments: str) -> None:
    """Runs the pip of this Python for another one, so that an environment needs none of its own."""
    command([sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, *arguments], None, os.environ)


def environment(folder: Path, *requirements: str, with_pip: bool = False) -> Environment:
    """A new environment with these packages. A wheel without dependencies needs no registry."""
    command([sys.executable, "-m", "venv", *([] if with_pip else ["--without-pip"]), str(folder)], None, os.environ)
    made = Environment(folder)
    pip(made.python, "install", "--quiet", *requirements)
    return made


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of code of a page that can run. One with an ellipsis is a part of something."""
    found = re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)
    return [block for block in found if "…" not in block]


def dev(
    program: str, where: Environment, folder: Path, code: str, input: Any = None, **variables: str
) -> tuple[str, float]:
    """Runs an agent by `dalsegno dev` until its run has succeeded. Returns what was printed, and how long it took."""
    folder.mkdir(exist_ok=True)
    (folder / "agent.py").write_text(code)
    (folder / "input.json").write_text(json.dumps(input))
    began = time.monotonic()
    words = [program, "dev", "--input", "input.json", "--", where.python, "agent.py"]
    said = command(words, folder, where.variables(**variables))
    return said, time.monotonic() - began


def as_main(prelude: str, block: str, *, attach: str = "state=dict") -> str:
    """A program around a block that is written for an asynchronous function with a run."""
    body = "".join(f"        {line}\n" if line else "\n" for line in block.splitlines())
    return f"""
import asyncio
import dalsegno
import dalsegno.aio
{prelude}

async def main():
    async with await dalsegno.aio.attach({attach}) as run:
{body}
        await run.finish()

asyncio.run(main())
"""


def results(output: str) -> Iterator[Any]:
    """What a program has printed behind the word RESULT."""
    return (json.loads(line.partition("RESULT ")[2]) for line in output.splitlines() if "RESULT " in line)
