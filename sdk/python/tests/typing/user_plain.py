"""Code of a user that type checkers accept, and lines that they must refuse: those with an ignore.

mypy refuses an ignore that is not needed (`strict`), and so does pyright here. This file is never run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from typing_extensions import TypedDict, assert_type

import dalsegno
import dalsegno.aio
from dalsegno.testing.memory import MemoryGateway
from dalsegno.testing.models import FakeOpenAI, Reply, ToolCall


@dataclass
class Guide:
    pages: list[str] = field(default_factory=lambda: list[str]())


class Book(TypedDict, total=False):
    title: str


@dalsegno.tool(policy="retrySameKey")
def pay(order: str, cents: int, *, key: str = "") -> str:
    return f"{order}: {cents} under {key}"


@dalsegno.tool(policy="readOnly")
async def look(order: str) -> int:
    return len(order)


def find(order: str, cents: int, key: str) -> str:
    raise dalsegno.CallFailed("nothing took effect")


@dalsegno.tool(policy="probe", probe=find)
def send(order: str, cents: int, *, key: str = "") -> str:
    return order


def draft(topic: str, words: int = 10) -> str:
    return topic * words


def with_a_dataclass() -> None:
    with dalsegno.attach(state=Guide) as run:
        assert_type(run.state.pages, list[str])
        run.state.pages.append(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        run.state.chapters  # type: ignore[attr-defined]  # pyright: ignore
        with run.turn() as turn:
            assert_type(turn.number, int)
            assert_type(turn.step("draft", draft, "birds", words=3), str)
            turn.step("draft", draft, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            turn.step("draft", draft, "birds", lines=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
            turn.spent(tokens=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        head = run.head
        assert_type(run.finish(output={"pages": 1}), None)
        print(head.turn)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


def with_a_dictionary() -> None:
    with dalsegno.attach() as run:
        assert_type(run.state, dict[str, Any])
    with dalsegno.attach(state=Book) as book:
        book.state["title"] = "Birds"
        book.state["title"] = 3  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]
    dalsegno.attach(every="daily")  # type: ignore[call-overload]  # pyright: ignore


def with_tools(run: dalsegno.Run[Any]) -> None:
    assert_type(pay("A-1", 5), str)
    pay("A-1", "5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pay("A-1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    answer = run.approval("buy", {"cents": 5}, title="Buy")
    assert_type(answer.granted, bool)
    assert_type(pay.approved_by(answer)("A-1", 5), str)
    pay.approved_by(3)("A-1", 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    run.approval("buy")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    dalsegno.tool(policy="sometimes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    dalsegno.tool()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def asynchronous() -> None:
    async with await dalsegno.aio.attach(state=Guide) as run:
        assert_type(run.state, Guide)
        async with run.turn() as turn:
            assert_type(await turn.step("draft", draft, "birds"), str)
            assert_type(await turn.step("look", count, "birds"), int)
            assert_type(await look("A-1"), int)
            assert_type(await run.space("log").get("last"), Any)
        await run.finish()
    with run:  # type: ignore[attr-defined]  # pyright: ignore
        pass


async def count(text: str) -> int:
    return len(text)


def tests() -> None:
    with MemoryGateway(input={"pages": 3}) as gateway, FakeOpenAI([Reply("hello", [ToolCall("pay", {"cents": 5})])]) as model:
        ended = gateway.run(["agent.py"], environment=model.environment)
        assert_type(ended.why, str)
        gateway.approve("buy", changes={"cents": 4})
        gateway.approve(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Reply(text=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
