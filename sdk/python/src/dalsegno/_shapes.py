"""What a JSON value is. The checks narrow `Any`, which `isinstance` narrows to a dictionary of unknown types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether it is a JSON object."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether it becomes a JSON array."""
    return isinstance(value, (list, tuple))


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a mapping, a JSON object among others."""
    return isinstance(value, Mapping)
