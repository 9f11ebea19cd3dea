"""Models of pydantic in a union of a run's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

pytest.importorskip("pydantic")

from pydantic import BaseModel, ConfigDict, RootModel, computed_field

from dalsegno import _json
from dalsegno._codec import Codec


class Bill(BaseModel):
    cents: int = 0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def euros(self) -> float:
        return self.cents / 100


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int = 0


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int = 0


class Names(RootModel[dict[str, int]]):
    pass


class Lines(RootModel[list[str]]):
    pass


class Train(BaseModel):
    kind: Literal["train"] = "train"
    seat: int


class Plane(BaseModel):
    kind: Literal["plane"] = "plane"
    seat: int


@dataclass
class State:
    bill: Bill | None = None
    open: Open | None = None
    strict: Strict | None = None
    names: Names | None = None
    lines: Lines | None = None
    way: Train | Plane | None = None


@pytest.mark.parametrize(
    "state",
    [
        State(bill=Bill(cents=500)),
        State(open=Open(n=1, more=[2])),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        State(names=Names({"a": 1})),
        State(lines=Lines(["a"])),
        State(way=Train(seat=1)),
        State(way=Plane(seat=1)),
    ],
)
def test_a_model_in_a_union_comes_back(state: State) -> None:
    assert Codec(State).decode(_json.dumps(state)) == state


@pytest.mark.parametrize("value", [{"n": 1, "later": 2}, {"n": "a"}])
def test_a_model_that_refuses_its_object_says_why(value: Any) -> None:
    with pytest.raises(ValueError, match="1 validation error for Strict"):
        Codec(State).decode(_json.dumps({"strict": value}))
