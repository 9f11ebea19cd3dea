"""The typed state of a run."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Any, Optional, TypedDict, Union

import pytest

from dalsegno import _json
from dalsegno._codec import Codec, decode, return_type
from dalsegno.testing.memory import MemoryGateway
from test_turn import in_process


class Color(enum.Enum):
    RED = "red"


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
    one = Item("a")
    state = State([one], {"a": one}, (1, one), (one, one), one, one, {"x": [1]})
    text = _json.dumps(dataclass_with_values(state))
    back = Codec(State).decode(text)
    assert back == state and isinstance(back.items[0].color, Color)
    assert Codec(State).decode('{"either": 3}').either == 3
    assert Codec(State).fresh() == State()


def dataclass_with_values(state: State) -> Any:
    """The state with enums as JSON has them: an agent's enum is a `str` too, or is written by its value."""
    return json.loads(json.dumps(state, default=lambda it: it.value if isinstance(it, Color) else vars(it)))


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
