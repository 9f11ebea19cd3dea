"""The wheel: it holds every module, and a fresh environment imports it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2]


def test_a_wheel_holds_every_module_and_is_imported_without_any_other_package(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: no wheel is built")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=PACKAGE,
        check=True,
        capture_output=True,
    )
    [wheel] = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    sources = {str(file.relative_to(PACKAGE / "src")) for file in (PACKAGE / "src").rglob("*.py")}
    assert sources | {"dalsegno/py.typed"} <= held
    code = "import dalsegno, dalsegno.aio, dalsegno.testing.memory, dalsegno.testing.models; print(dalsegno.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    found = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert str(wheel) in found.stdout
