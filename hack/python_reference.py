"""Writes docs/reference/python.md from the docstrings of the Python package. A test fails while the page is stale.

PYTHONPATH=sdk/python/src python3 hack/python_reference.py > docs/reference/python.md
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import dalsegno
from dalsegno import aio
from dalsegno.testing import memory, models, plugin
from python_docstrings import layout, one_line, target
from python_frameworks import framework

HEAD = """# The Python package

This page has every public name of `dalsegno`, with its shapes, units and errors. It is made from the docstrings:
`python3 hack/python_reference.py` writes it. The guide is [agents in Python](../guides/python.md). Below the name of a
class is how it is made; a class without that is made by the package alone.
"""

KINDS = (
    ("Functions", lambda it: inspect.isfunction(it)),
    ("Classes", lambda it: inspect.isclass(it) and not issubclass(it, BaseException)),
    ("Exceptions", lambda it: inspect.isclass(it) and issubclass(it, BaseException)),
)


def main() -> None:
    """Prints the page."""
    print("\n".join([HEAD, *page()]).rstrip())


def page() -> Iterator[str]:
    yield from module(dalsegno, "dalsegno")
    yield "## `dalsegno.aio`\n"
    summary, _, rest = text(aio).partition("```python")
    yield f"{summary.strip()}\n\n{rest.partition('```')[2].strip()}\n"
    yield f"#### `attach{signature(aio.attach)}`\n"
    yield f"{text(aio.attach)}\n"
    for name in ("langgraph", "claude", "openai", "pydantic_ai"):
        yield from framework(Path(dalsegno.__file__).parent / name)
    yield from module(memory, "dalsegno.testing.memory")
    yield from module(models, "dalsegno.testing.models")
    yield "## `dalsegno.testing.plugin`\n"
    yield f"{text(plugin)}\n"
    matrix = plugin.CrashMatrix.__call__
    yield f"#### `crash_matrix{signature(matrix)}`\n"
    yield f"{text(matrix)}\n"


def module(found: ModuleType, name: str) -> Iterator[str]:
    """The public names of a module, by kind."""
    yield f"## `{name}`\n"
    public = {each: getattr(found, each) for each in found.__all__}
    constants = [each for each, it in public.items() if not (inspect.isfunction(it) or inspect.isclass(it))]
    for kind, is_kind in KINDS:
        members = {each: it for each, it in public.items() if is_kind(it)}
        if members:
            yield f"### {kind} of `{name}`\n"
        for each, it in members.items():
            yield from (exception(each, it) if kind == "Exceptions" else entry(each, it))
    if constants:
        documented = assigned(Path(str(found.__file__)).parent)
        yield f"### Constants and types of `{name}`\n"
        yield "| name | meaning |"
        yield "|---|---|"
        yield from (f"| `{each}` | {one_line(documented[each])} |" for each in constants)
        yield ""


def assigned(folder: Path) -> dict[str, str]:
    """What the files of a package say of the names that they assign, in a string below."""
    found: dict[str, str] = {}
    for file in sorted(folder.glob("_*.py")):
        body = ast.parse(file.read_text()).body
        for statement, following in zip(body, body[1:]):
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                found[target(statement)] = inspect.cleandoc(str(following.value.value))
    return found


def exception(name: str, kind: type) -> Iterator[str]:
    base = kind.__bases__[0].__name__
    yield f"**`{name}`** ({base.lstrip('_')}). {text(kind)}\n"


def entry(name: str, it: Any) -> Iterator[str]:
    """A function, or a class with its members."""
    if inspect.isfunction(it):
        yield f"#### `{name}{signature(it)}`\n"
        yield f"{text(it)}\n"
        return
    yield f"#### `{name}`\n"
    if is_made_by_users(it):
        yield f"`{name}{signature(it)}`\n"
    yield f"{text(it)}\n"
    if is_made_by_users(it) and not is_dataclass(it):
        yield f"{layout(inspect.getdoc(it.__init__) or '', [*inspect.signature(it).parameters])}\n"
    values = attributes(it)
    if values:
        yield "| value | meaning |"
        yield "|---|---|"
        yield from (f"| `{each}` | {one_line(doc)} |" for each, doc in values.items())
        yield ""
    for each, method in methods(it).items():
        yield f"**`{each}{signature(method)}`**\n"
        yield f"{text(method)}\n"


def is_made_by_users(kind: type) -> bool:
    """Whether a user calls the constructor: of a value, or for a test. The package itself makes a `Run` or a `Turn`."""
    return is_dataclass(kind) or kind.__module__.startswith("dalsegno.testing.")


def attributes(kind: type) -> dict[str, str]:
    """The values that a class documents: by a string below an annotation, or as a property."""
    found: dict[str, str] = {}
    for base in reversed([it for it in kind.__mro__ if it.__module__.startswith("dalsegno")]):
        body = source(base)
        constructor = [it for it in body.body if isinstance(it, ast.FunctionDef) and it.name == "__init__"]
        for statements in (body.body, *(it.body for it in constructor)):
            for statement, following in zip(statements, statements[1:]):
                name = target(statement)
                if name and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    found[name] = inspect.cleandoc(str(following.value.value))
        for name, it in vars(base).items():
            if not name.startswith("_") and (isinstance(it, property) or hasattr(it, "attrname")):
                found[name] = text(it)
    return found


def source(kind: type) -> ast.ClassDef:
    """The definition of a class. Public classes name the package as their module, so that all of its files are searched."""
    if kind.__module__ != "dalsegno":
        found = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        assert isinstance(found, ast.ClassDef)
        return found
    for file in sorted(Path(dalsegno.__file__).parent.glob("*.py")):
        for it in ast.parse(file.read_text()).body:
            if isinstance(it, ast.ClassDef) and it.name == kind.__name__:
                return it
    raise LookupError(kind)


def methods(kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed([it for it in kind.__mro__ if it.__module__.startswith("dalsegno")]):
        found |= {
            name: inspect.unwrap(getattr(base, name))
            for name, it in vars(base).items()
            if not name.startswith("_") and (inspect.isfunction(it) or isinstance(it, (staticmethod, classmethod)))
        }
    return found


def signature(function: Any) -> str:
    """The parameters by name and default; types are in the source."""
    shown = []
    for it in inspect.signature(function).parameters.values():
        if it.name in ("self", "cls"):
            continue
        if it.kind is it.KEYWORD_ONLY and "*" not in shown and not any(word.startswith("*") for word in shown):
            shown.append("*")
        stars = {it.VAR_POSITIONAL: "*", it.VAR_KEYWORD: "**"}.get(it.kind, "")
        shown.append(f"{stars}{it.name}{default(function, it)}")
    return f"({', '.join(shown)})"


def default(function: Any, parameter: inspect.Parameter) -> str:
    """The default of a parameter, as `=value`."""
    value = parameter.default
    if value is parameter.empty:
        return ""
    if is_dataclass(function):
        made = {it.name: it.default_factory for it in fields(function) if it.default_factory is not MISSING}
        value = made[parameter.name]() if parameter.name in made else value
    return f"={value.__name__ if inspect.isclass(value) else repr(value)}"


def text(it: Any) -> str:
    """A docstring, with a list of its parameters."""
    return layout(inspect.getdoc(it) or "", [*inspect.signature(it).parameters] if inspect.isfunction(it) else [])


if __name__ == "__main__":
    sys.exit(main())
