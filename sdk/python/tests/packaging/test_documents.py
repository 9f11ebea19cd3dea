"""The README, the guide and the reference: they show what the package has."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dalsegno
from dalsegno import Run, Space, Turn
from dalsegno.testing import memory, models

PACKAGE = Path(__file__).parents[2]
REPOSITORY = PACKAGE.parents[1]
DOCS = REPOSITORY / "docs"
in_repository = pytest.mark.skipif(not DOCS.exists(), reason="the package is tested outside of its repository")


@in_repository
def test_the_reference_is_what_the_docstrings_say() -> None:
    script = [sys.executable, str(REPOSITORY / "hack" / "python_reference.py")]
    page = subprocess.run(
        script, env={"PYTHONPATH": str(PACKAGE / "src")}, capture_output=True, text=True, check=True
    ).stdout
    assert page == (DOCS / "reference" / "python.md").read_text(), (
        "hack/python_reference.py writes docs/reference/python.md"
    )


@in_repository
@pytest.mark.parametrize("module", [memory, models], ids=lambda module: module.__name__)
def test_the_reference_shows_how_each_class_for_tests_is_made(module: ModuleType) -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    kinds = [it for it in map(vars(module).get, module.__all__) if inspect.isclass(it)]
    assert kinds
    for kind in kinds:
        [shown] = re.findall(rf"^`{kind.__name__}\((.*)\)`$", page, re.MULTILINE)
        assert re.findall(r"(\w+)(?==|,|$)", re.sub(r"=[^,]*", "=", shown)) == [*inspect.signature(kind).parameters]


def pages() -> list[Path]:
    guides = ["python", "agents-that-wait", "tool-calls", "large-state", "first-agent", "approvals"]
    return [PACKAGE / "README.md", *(DOCS / "guides" / f"{name}.md" for name in guides if DOCS.exists())]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_the_code_of_a_page_uses_names_that_exist(page: Path) -> None:
    known = {
        "run": dir(Run) + [*_annotations(Run)],
        "turn": dir(Turn) + ["number"],
        "session": dir(Space),
        "dalsegno": [*dir(dalsegno), "aio"],
    }
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        tree = compile(f"async def page():\n{_indent(block)}", str(page), "exec", ast.PyCF_ONLY_AST)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
                assert node.attr in known[node.value.id], f"{page.name}: {node.value.id}.{node.attr}"


def _annotations(kind: type) -> set[str]:
    return {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}


def _indent(block: str) -> str:
    return "".join(f"    {line}\n" for line in block.splitlines()) + "    pass\n"
