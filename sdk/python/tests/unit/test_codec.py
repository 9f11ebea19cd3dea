"""The typed state of a run."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Any, Literal, Optional, TypedDict, Union

import pytest

from dalsegno import _json
from dalsegno._codec import Codec, decode, return_type
from dalsegno.testing.memory import MemoryGateway
from test_turn import in_process


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    HIGH = 2


class Name(str, enum.Enum):
    ANN = "ann"


@dataclass
class Item:
    name: str
    color: Color = Color.RED


@dataclass
class State:
    items: list[Item] = field(default_factory=list)
    by_name: dict[str, Item] = field(default_factory=dict)
    pair: tuple[int, Item] | None = None
    many: tuple[Item, ...] = ()
    maybe: Optional[Item] = None
    either: Union[int, Item, None] = None
    anything: Any = None
    by_number: dict[int, Item] = field(default_factory=dict)
    named: dict[Name, int] = field(default_factory=dict)
    by_level: dict[Level, int] = field(default_factory=dict)
    by_flag: dict[bool, float] = field(default_factory=dict)


class Typed(TypedDict, total=False):
    n: int


class Model:
    """What this package needs of a pydantic model."""

    def __init__(self, n: int = 0) -> None:
        self.n = n

    @classmethod
    def model_validate(cls, value: dict[str, Any]) -> Model:
        return cls(**value)

    def model_dump(self, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"n": self.n}


def there_and_back(kind: Any, value: Any) -> Any:
    return Codec(kind).decode(_json.dumps(value))


def test_a_dataclass_comes_back_with_what_it_holds() -> None:
    one = Item("a", Color.BLUE)
    state = State([one], {"a": one}, (1, one), (one, one), one, one, {"x": [1]})
    state.by_number, state.by_flag = {1: one, -2: one}, {True: 0.5, False: 1.5}
    state.named, state.by_level = {Name.ANN: 1}, {Level.HIGH: 1}
    back = there_and_back(State, state)
    assert back == state and isinstance(back.items[0].color, Color)
    assert isinstance([*back.named][0], Name) and isinstance([*back.by_level][0], Level)
    assert Codec(State).decode('{"either": 3}').either == 3
    assert Codec(State).fresh() == State()


def test_an_enum_is_its_value() -> None:
    assert _json.canonical({"color": Color.RED, "level": Level.HIGH}) == '{"color":"red","level":2}'


@dataclass
class Created:
    at: str = ""


@dataclass
class Paid:
    cents: int = 0


@dataclass
class Refunded:
    cents: int = 0
    reason: str = ""


@dataclass
class Repaid:
    cents: int = 0
    reason: str = ""


@dataclass
class Order:
    last: Created | Paid | Refunded | None = None
    other: Refunded | Repaid | int | None = None
    open: Paid | dict[str, Any] | None = None
    plain: Paid | int | str | tuple[int, ...] | None = None


@pytest.mark.parametrize("last", [Created("now"), Paid(5), Refunded(5, "late"), None])
def test_a_member_of_a_union_comes_back_as_itself(last: Any) -> None:
    assert there_and_back(Order, Order(last)) == Order(last)


@pytest.mark.parametrize(
    "state", [{"last": {"amount": 5}}, {"last": {}}, {"other": {"cents": 5}}, {"other": {"cents": 5, "reason": "a"}}]
)
def test_a_value_that_is_no_or_several_members_of_a_union_is_an_error(state: Any) -> None:
    with pytest.raises(TypeError, match="which of"):
        Codec(Order).decode(json.dumps(state))


def test_a_member_without_its_newer_fields_and_a_member_that_is_any_object_are_found() -> None:
    assert Codec(Order).decode('{"last": {"reason": "late"}}').last == Refunded(0, "late")
    assert Codec(Order).decode('{"open": {"amount": 5}}').open == {"amount": 5}
    assert Codec(Order).decode('{"open": {"cents": 5}}').open == Paid(5)


@dataclass
class Leg:
    cents: int = 0
    color: Color = Color.RED


@dataclass
class ByTrain:
    seat: int
    kind: Literal["train"] = "train"


@dataclass
class ByPlane:
    seat: int
    kind: Literal["plane"] = "plane"


@dataclass
class Trip:
    leg: Leg | None = None
    way: ByTrain | ByPlane | None = None
    paid: Paid | Refunded | None = None
    several: list[Leg | ByTrain] = field(default_factory=list)
    color: Color | None = None


def test_a_member_of_a_union_ignores_the_fields_that_it_does_not_know() -> None:
    assert Codec(Trip).decode('{"leg": {"cents": 5, "later": 1}}').leg == Leg(5)
    assert Codec(Trip).decode('{"leg": {"later": 1}}').leg == Leg()
    assert Codec(Trip).decode('{"paid": {"cents": 5, "reason": "a", "later": 1}}').paid == Refunded(5, "a")
    assert Codec(Trip).decode('{"several": [{"seat": 7, "later": 1}]}').several == [ByTrain(7)]
    assert Codec(Order).decode('{"open": {"cents": 5, "later": 1}}').open == {"cents": 5, "later": 1}
    with pytest.raises(TypeError, match=r"'cents', 'later'\]: which of Paid \| Refunded"):
        Codec(Trip).decode('{"paid": {"cents": 5, "later": 1}}')


@pytest.mark.parametrize("way", [ByTrain(7), ByPlane(7), None])
def test_members_with_the_same_fields_are_told_apart_by_a_literal(way: Any) -> None:
    assert there_and_back(Trip, Trip(way=way)) == Trip(way=way)


def test_the_error_of_the_only_possible_member_is_passed_on() -> None:
    for text in '{"leg": {"cents": 5, "color": "green"}}', '{"leg": {"color": "green", "later": 1}}':
        with pytest.raises(ValueError, match="'green' is not a valid Color"):
            Codec(Trip).decode(text)
    with pytest.raises(ValueError, match="'green' is not a valid Color"):
        Codec(Trip).decode('{"color": "green"}')
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'seat'"):
        Codec(Trip).decode('{"way": {"kind": "plane"}}')
    with pytest.raises(ValueError, match="'green' is not a valid Color"):  # `ByTrain` would ignore all of it
        decode(Leg | Paid, {"cents": 5, "color": "green"})


def test_a_model_in_a_union_decides_about_the_fields_that_it_does_not_name() -> None:
    class Total(Model):
        model_fields = {"n": None}
        model_computed_fields = {"total": None}

        @classmethod
        def model_validate(cls, value: dict[str, Any]) -> Total:
            if "n" not in value:
                raise ValueError("no n")
            return cls(value["n"])

    class Root(Model):
        __pydantic_root_model__ = True
        model_fields = {"root": None}

        @classmethod
        def model_validate(cls, value: Any) -> Root:
            return cls(len(value))

    class Mean(Model):
        model_fields = {"n": None}

    assert decode(Optional[Total], {"n": 7, "total": 8}).n == 7
    assert decode(Optional[Total], {"n": 7, "more": 8}).n == 7
    assert type(decode(Union[Mean, Total], {"n": 7, "total": 8})) is Total
    assert decode(Optional[Root], {"a": 1, "b": 2}).n == 2 and decode(Optional[Root], [1]).n == 1
    with pytest.raises(ValueError, match="no n"):
        decode(Optional[Total], {"more": 1})


def test_a_model_in_a_union_is_told_by_its_fields() -> None:
    class Other(Model):
        model_fields = {"m": None}

    class Numbered(Model):
        model_fields = {"n": None}

    assert isinstance(decode(Other | Numbered, {"n": 7}), Numbered)
    assert isinstance(decode(Union[Other, Model], {"n": 7}), Model), "it says no fields, and reads the value"


@pytest.mark.parametrize("value", [1, "a", (1, 2)])
def test_a_plain_member_of_a_union_comes_back(value: Any) -> None:
    assert there_and_back(Order, Order(plain=value)) == Order(plain=value)


def test_fields_that_the_program_does_not_know_are_ignored_and_missing_ones_have_their_default() -> None:
    assert Codec(State).decode('{"later": 1, "items": [{"name": "a", "later": 2}]}') == State([Item("a")])


def test_a_model_is_read_by_its_own_method() -> None:
    assert there_and_back(Model, Model(7)).n == 7 and Codec(Model).fresh().n == 0
    assert decode(list[Model], [{"n": 1}])[0].n == 1


def test_plain_types_are_taken_as_they_are() -> None:
    assert (there_and_back(dict, {"n": 1}), there_and_back(list, [1]), there_and_back(Typed, {"n": 1})) == (
        {"n": 1},
        [1],
        {"n": 1},
    )
    assert (Codec(dict).fresh(), Codec(list).fresh(), Codec(Typed).fresh(), Codec(None).fresh()) == ({}, [], {}, None)
    assert Codec(None).decode("7") == 7


@pytest.mark.parametrize(("kind", "text"), [(dict, "[]"), (list, "{}"), (State, "[]"), (Typed, "1")])
def test_a_state_of_another_shape_is_an_error(kind: Any, text: str) -> None:
    with pytest.raises(TypeError, match="the committed state is a"):
        Codec(kind).decode(text)


def test_a_type_without_defaults_cannot_begin() -> None:
    with pytest.raises(TypeError, match=r"state=Item: a fresh run begins with Item\(\)"):
        Codec(Item).fresh()


def test_a_result_type_that_cannot_be_found_is_none() -> None:
    def odd() -> Missing:  # type: ignore[name-defined]  # noqa: F821
        return 1

    assert return_type(odd) is None and return_type(len) is None and return_type(there_and_back) is Any


def test_a_typed_state_lives_in_the_run(dalsegno_gateway: MemoryGateway) -> None:
    @dataclass
    class Pages:
        pages: list[int] = field(default_factory=list)

    with pytest.raises(KeyError), in_process(state=Pages) as run:
        for number in range(2):
            with run.turn():
                run.state.pages.append(number)
                if number == 1:
                    raise KeyError
    assert run.state == Pages([0])
    dalsegno_gateway.start_attempt()
    with in_process(state=Pages) as run:
        assert run.state == Pages([0])
        run.finish()
    assert dalsegno_gateway.state == {"pages": [0]}
