"""How docs/reference/python.md shows docstrings: see python_reference.py."""

from __future__ import annotations

import ast
import re
import textwrap


def target(statement: ast.stmt) -> str:
    """The public name that a statement declares, or an empty text."""
    targets = (
        [statement.target]
        if isinstance(statement, ast.AnnAssign)
        else statement.targets
        if isinstance(statement, ast.Assign)
        else []
    )
    names = [ast.unparse(it).removeprefix("self.") for it in targets]
    return names[0] if len(names) == 1 and names[0].isidentifier() and not names[0].startswith("_") else ""


def layout(doc: str, names: list[str]) -> str:
    """A docstring. What it says of each of these parameters becomes an item of a list."""
    if "```" in doc:
        return doc
    item = re.compile(rf"(?:{'|'.join(names)})(?:, \w+)*: ") if names else re.compile("(?!)")
    paragraphs: list[str] = []
    for line in doc.splitlines():
        if item.match(line):
            paragraphs.append(f"- {line}")
        elif line.startswith("    ") and paragraphs and paragraphs[-1].startswith("- "):
            paragraphs[-1] += f" {line.strip()}"
        else:
            paragraphs.append(line)
    return "\n".join(wrap(line) if line.startswith("- ") else line for line in paragraphs)


def wrap(line: str) -> str:
    return textwrap.fill(line, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def one_line(doc: str) -> str:
    return " ".join(doc.split()).replace("|", "\\|")
