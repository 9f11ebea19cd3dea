"""The typed state of a run: how it is made, and how it is read back from JSON.

A type is `dict`, `list`, a `TypedDict`, a dataclass, or a class with pydantic's `model_validate`, which this package
does not import. Fields that a dataclass does not know are ignored, so that an older program reads a newer state. A
member of a union is the class with the same fields as the JSON object, or else the only class that knows all of its
fields, or else the one that knows most of them. A class whose `Literal` field has another value is none of them.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import itertools
import json
import types
import typing
from typing import Any, Generic, TypeVar

S = TypeVar("S")


class Codec(Generic[S]):
    """Makes and reads states of one type. Without a type a state is the JSON value as it was committed."""

    def __init__(self, kind: type[S] | None) -> None:
        self._kind = kind

    def fresh(self) -> S:
        """The state of a run that has committed none. Errors: `TypeError` where a field has no default."""
        kind = self._kind
        if kind is None:
            return typing.cast(S, None)
        try:
            return kind()
        except (TypeError, ValueError) as error:
            raise TypeError(f"state={kind.__name__}: a fresh run begins with {kind.__name__}(): {error}") from error

    def decode(self, text: str) -> S:
        """The state with this JSON text. Errors: `TypeError` or `ValueError` where it is not of the type."""
        value = json.loads(text)
        kind = self._kind
        if kind is None:
            return typing.cast(S, value)
        expected = list if issubclass(kind, list) else dict
        if not isinstance(value, expected):
            raise TypeError(f"state={kind.__name__}: the committed state is a {type(value).__name__}")
        return typing.cast(S, decode(kind, value))


def decode(kind: Any, value: Any) -> Any:
    """A JSON value as a value of this type; a type that JSON says nothing about is left alone."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    kind_of: Any = kind
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, value)
    if origin in (list, collections.abc.Sequence) and isinstance(value, list):
        return [decode(arguments[0], item) for item in _items(value)]
    if origin is tuple and isinstance(value, list):
        each = itertools.repeat(arguments[0]) if arguments[-1:] == (...,) else arguments
        return tuple(decode(item_kind, item) for item_kind, item in zip(each, _items(value)))
    if origin in (dict, collections.abc.Mapping) and isinstance(value, dict):
        members: dict[str, Any] = typing.cast("dict[str, Any]", value)
        return {_decode_key(arguments[0], name): decode(arguments[1], item) for name, item in members.items()}
    if not isinstance(kind, type):
        return value
    if hasattr(kind, "model_validate"):
        return kind_of.model_validate(value)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        kinds = typing.get_type_hints(kind)
        known = (field.name for field in dataclasses.fields(kind) if field.init and field.name in value)
        return kind(**{name: decode(kinds[name], value[name]) for name in known})
    if issubclass(kind, enum.Enum):
        return kind(value)
    return value


def _items(value: Any) -> list[Any]:
    items: list[Any] = value
    return items


def _decode_key(kind: Any, name: str) -> Any:
    """The key of a dict from the name of a member: JSON has numbers, truth values and enums there as text."""
    if kind in (int, float, bool):
        return kind(json.loads(name))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        texts = {it.value if isinstance(it.value, str) else json.dumps(it.value): it for it in kind}
        return texts.get(name, name)
    return name


def _decode_union(kinds: tuple[Any, ...], value: Any) -> Any:
    """The alternative that fits best. Of plain types it is the first that can hold the value.

    Errors: `TypeError` where no class fits best alone; the error of a class that is the only possible one.
    """
    found: list[tuple[_Rank, Any]] = []
    failed: list[tuple[_Rank, Exception]] = []
    for kind in kinds:
        if rank := _rank(kind, value):
            try:
                found.append((rank, decode(kind, value)))
            except (TypeError, ValueError) as error:
                failed.append((rank, error))
    best = max((rank for rank, _ in found), default=_NONE)
    fitting = [decoded for rank, decoded in found if rank == best]
    # A class that ignores fields takes no object whose own class cannot read it.
    errors = [error for rank, error in failed if rank > best] if best < _PLAIN else []
    if len(errors) == 1:
        raise errors[0]
    is_ambiguous = len(fitting) > 1 and best[:1] != _PLAIN
    if errors or is_ambiguous or (not fitting and isinstance(value, dict)):
        names = " | ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
        what = f"an object with the fields {sorted(_names(value))}" if isinstance(value, dict) else repr(value)
        raise TypeError(f"{what}: which of {names} is it?")
    return fitting[0] if fitting else value


_Rank = tuple[int, ...]
"""How well an alternative fits; more is better. See `_rank`."""

_NONE: _Rank = ()
_NEWER, _PLAIN, _KNOWS, _SAME = (1,), (2,), (3,), (4,)


def _rank(kind: Any, value: Any) -> _Rank:
    """From the worst: it cannot be this; a class that does not know all fields, and how many it knows; a type without
    fields; a class that knows all fields; a class with the same fields."""
    plain = typing.get_origin(kind) or kind
    if plain in (str, int, float, bool, list, dict, types.NoneType):
        return _PLAIN if isinstance(value, plain) else _NONE
    fields = _fields(kind)
    if fields is None:
        return _PLAIN
    if not isinstance(value, dict) or _is_told_apart(kind, value):
        return _NONE
    names = _names(value)
    if names <= fields:
        return _SAME if names == fields else _KNOWS
    return *_NEWER, len(names & fields)


def _is_told_apart(kind: Any, value: Any) -> bool:
    """Whether a `Literal` field of this dataclass has another value."""
    kinds = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
    literals = {name: it for name, it in kinds.items() if typing.get_origin(it) is typing.Literal and name in value}
    return any(value[name] not in _literal_values(it) for name, it in literals.items())


def _literal_values(kind: Any) -> list[Any]:
    return [it.value if isinstance(it, enum.Enum) else it for it in typing.get_args(kind)]


def _fields(kind: Any) -> set[str] | None:
    """The names of a class's fields; `None` where it says none, has other names in JSON, or is JSON of any shape."""
    kind_of: Any = kind
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    model: dict[str, Any] = getattr(kind_of, "model_fields", {})
    aliased = any(getattr(field, "alias", None) for field in model.values())
    if not model or aliased or getattr(kind_of, "__pydantic_root_model__", False):
        return None
    return {*model, *getattr(kind_of, "model_computed_fields", {})}


def _names(value: Any) -> set[str]:
    return set(value)


def hints(function: Any) -> dict[str, Any]:
    """The annotations of a function, `return` among them; none where they cannot be resolved."""
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


def return_type(function: Any) -> Any:
    """The annotated result of a function; `None` where it has none, or one that cannot be resolved."""
    return hints(function).get("return")
