"""A user's agent: see user_plain.py."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from typing_extensions import assert_type

import dalsegno
import dalsegno.aio
from dalsegno.pydantic_ai import Durability, Probe, RecordConversationStore, call_key


def pay(order: str, cents: int) -> str:
    return f"{order}: {cents} under {call_key()}"


def find(order: str, cents: int) -> str:
    raise dalsegno.CallFailed("nothing took effect")


agent = Agent("openai:gpt-5.2", name="buyer", tools=[pay], capabilities=[Durability(tools={"pay": "retrySameKey"})])
probed = Durability[None](tools={"pay": Probe(find)})
wrong = Durability[None](tools={"pay": "sometimes"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
missing = Durability[None](tool={"pay": "ask"})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
no_probe = Probe("find")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def main() -> None:
    async with await dalsegno.aio.attach() as run:
        store = RecordConversationStore(run)
        async with run.turn() as turn:
            conversation = await store.load("support")
            assert_type(conversation, Conversation | None)
            result = await agent.run(run.input["task"], conversation=conversation)
            assert_type(result.output, str)
            await store.save(result)
            turn.finish(message=result.output[:250])
        await store.load(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RecordConversationStore("run")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
