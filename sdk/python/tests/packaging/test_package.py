"""The package itself: how it is found, and what it needs."""

import shutil
import subprocess
import sys
from pathlib import Path

from scripted_gateway import SOURCES

PUBLIC = (
    "Answer Approval AtLimit CallFailed Cancelled Diverged Error GRACE_SECONDS Head Item KeyRefused Leave Message NotAttached "
    "NotConfigured OVER Operation Parked Policy Refused Run Space Stopping StoreUnavailable Suspended TERMINATION_LOG Tool Turn "
    "Uncertain Unhandled Wait as_user_turn attach spent tool"
)


def python(code: str, directory: Path, **environment: str) -> str:
    """What these lines print, in a Python that sees no installed package."""
    command = [sys.executable, "-S", "-B", "-c", code]
    return subprocess.run(command, cwd=directory, env=environment, text=True, check=True, stdout=subprocess.PIPE).stdout


def test_the_package_is_importable_by_pythonpath_without_an_installation(tmp_path: Path) -> None:
    found = python("import dalsegno; print(dalsegno.__file__)", tmp_path, PYTHONPATH=str(SOURCES))
    assert found == f"{SOURCES / 'dalsegno' / '__init__.py'}\n"


def test_a_copy_of_the_folder_beside_the_agent_is_enough(tmp_path: Path) -> None:
    shutil.copytree(SOURCES / "dalsegno", tmp_path / "dalsegno")
    assert python("from dalsegno import Run; print(Run.__name__)", tmp_path) == "Run\n"


def test_importing_it_imports_the_standard_library_alone(tmp_path: Path) -> None:
    code = """
import sys
import dalsegno
packages = {name.split(".")[0] for name in sys.modules} - {"__main__"}
print(*sorted(packages - sys.stdlib_module_names))
"""
    assert python(code, tmp_path, PYTHONPATH=str(SOURCES)) == "dalsegno\n"


def test_its_public_names_are_these_and_no_others(tmp_path: Path) -> None:
    code = "from dalsegno import *; print(*sorted(name for name in dir() if not name.startswith('__')))"
    assert python(code, tmp_path, PYTHONPATH=str(SOURCES)) == f"{PUBLIC}\n"


def test_it_is_marked_as_typed() -> None:
    assert (SOURCES / "dalsegno" / "py.typed").is_file()


def test_an_agent_that_nothing_has_started_says_how_to_start_it(tmp_path: Path) -> None:
    code = """
from dalsegno import Run
try:
    Run.attach()
except LookupError as error:
    print(error)
"""
    said = python(code, tmp_path, PYTHONPATH=str(SOURCES))
    assert "is not set: start the agent with `dalsegno dev -- python3 agent.py`" in said
