"""The modules for agent frameworks in docs/reference/python.md. They are read and not imported: their frameworks may be missing."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from python_docstrings import layout, one_line, target

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def framework(folder: Path) -> Iterator[str]:
    """A module: its public names in the order of `__all__`, functions first."""
    name = f"dalsegno.{folder.name}"
    package = ast.parse((folder / "__init__.py").read_text())
    yield f"## `{name}`\n"
    yield f"{(ast.get_docstring(package) or '').partition('```python')[0].strip()}\n"
    yield f"The guide is [{folder.name}](../guides/{folder.name}.md).\n"
    found = {it: definition(folder, it) for it in public(package)}
    for each, it in found.items():
        if isinstance(it, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"#### `{each}{signature(it)}`\n"
            yield f"{text(it)}\n"
    for each, it in found.items():
        if isinstance(it, ast.ClassDef):
            yield f"#### `{each}`\n"
            yield from class_entry(it)
    types = [each for each, it in found.items() if isinstance(it, (ast.Assign, ast.AnnAssign))]
    if types:
        yield f"Types: {', '.join(f'`{each}`' for each in types)}.\n"


def public(package: ast.Module) -> list[str]:
    [names] = [it.value for it in package.body if isinstance(it, ast.Assign) and ast.unparse(it.targets[0]) == "__all__"]
    found: list[str] = ast.literal_eval(names)
    return found


def definition(folder: Path, name: str) -> ast.stmt:
    """What the module exports under this name."""
    for file in sorted(folder.glob("_*.py")):
        for it in ast.parse(file.read_text()).body:
            is_named = isinstance(it, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and it.name == name
            if is_named or (isinstance(it, (ast.Assign, ast.AnnAssign)) and target(it) == name):
                return it
    raise LookupError(name)


def class_entry(it: ast.ClassDef) -> Iterator[str]:
    """A class: how it is made, its values and its methods."""
    made = [each for each in functions(it) if each.name == "__init__"]
    if made:
        yield f"`{it.name}{signature(made[0])}`\n"
    yield f"{text(it)}\n"
    if made and text(made[0]):
        yield f"{text(made[0])}\n"
    values = attributes(it, made)
    if values:
        yield "| value | meaning |"
        yield "|---|---|"
        yield from (f"| `{each}` | {one_line(doc)} |" for each, doc in values.items())
        yield ""
    for each in functions(it):
        if not each.name.startswith("_") and not is_property(each) and text(each):
            yield f"**`{each.name}{signature(each)}`**\n"
            yield f"{text(each)}\n"


def functions(it: ast.ClassDef) -> list[Function]:
    return [each for each in it.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]


def is_property(it: Function) -> bool:
    return any(ast.unparse(each) == "property" for each in it.decorator_list)


def attributes(it: ast.ClassDef, made: list[Function]) -> dict[str, str]:
    """The values that a class documents: by a string below an annotation, or as a property."""
    found: dict[str, str] = {}
    for statements in (it.body, *(each.body for each in made)):
        for statement, following in zip(statements, statements[1:]):
            name = target(statement)
            if name and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                found[name] = inspect.cleandoc(str(following.value.value))
    properties = [each for each in functions(it) if is_property(each) and not each.name.startswith("_")]
    return found | {each.name: text(each) for each in properties}


def signature(it: Function) -> str:
    """The parameters by name and default; types are in the source."""
    given, shown = it.args, list[str]()
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + [*given.defaults]
    for each, default in zip(positional, defaults):
        if each.arg not in ("self", "cls"):
            shown.append(with_default(each, default))
    if given.vararg or given.kwonlyargs:
        shown.append(f"*{given.vararg.arg if given.vararg else ''}")
    shown += [with_default(each, default) for each, default in zip(given.kwonlyargs, given.kw_defaults)]
    if given.kwarg:
        shown.append(f"**{given.kwarg.arg}")
    return f"({', '.join(shown)})"


def with_default(it: ast.arg, default: ast.expr | None) -> str:
    return it.arg if default is None else f"{it.arg}={ast.unparse(default)}"


def text(it: Function | ast.ClassDef) -> str:
    """A docstring, with a list of its parameters."""
    names = list[str]()
    if not isinstance(it, ast.ClassDef):
        given = it.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        names = [each.arg for each in every if each is not None and each.arg != "self"]
    return layout(ast.get_docstring(it) or "", names)
