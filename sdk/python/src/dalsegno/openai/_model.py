"""`DurableModel`: a model's answers are steps of the turn, so that a later attempt gets them without asking."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from agents import Model, ModelResponse, MultiProvider
from agents.usage import Usage, deserialize_usage, serialize_usage
from openai.types.responses import Response, ResponseCompletedEvent, ResponseOutputItemDoneEvent

from dalsegno import _json
from dalsegno._errors import Diverged
from dalsegno._turn import Step
from dalsegno.aio import AsyncRun
from dalsegno.openai._link import digest, link_of, name_part, scope

if TYPE_CHECKING:
    from agents import TResponseInputItem
    from agents.items import TResponseStreamEvent
    from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest


class DurableModel(Model):
    """A model whose answers are stored in the open turn of a run. `guard` gives one to each agent.

    An answer is a call with the policy `readOnly` and the id `TURN.model.NAME.K`. If a process dies before the answer is
    stored, the next one asks again; afterwards none does, until the turn is committed. The tokens of an answer are counted
    as spent by its turn; those of an agent that runs in a guarded tool, by that tool's call.

    An agent that runs inside of a tool call asks in an order that nobody knows. So the ids of its answers also have a
    hash of the calls around it and of the conversation, and K counts equal conversations.

    A streamed answer that comes from the store has one event, `response.completed`.

    Errors: those of the model; those of `Run.call`; `Diverged` if the answer was stored by the other method of this
    class; `RuntimeError` if no turn is open.
    """

    def __init__(self, run: AsyncRun[Any], model: Model | str | None, name: str = "model") -> None:
        """model: the model to ask, or its name as `Agent.model` has it. name: a part of the ids of its answers."""
        self._run = run
        self._model = model
        self._name = name_part(name, 40)
        self._own_provider: MultiProvider | None = None

    @property
    def inner(self) -> Model:
        """The model that is asked. A name is looked up where `RunConfig.model_provider` of `run_agent` says."""
        if isinstance(self._model, Model):
            return self._model
        provider = link_of(self._run).provider
        if provider is None:
            provider = self._own_provider = self._own_provider or MultiProvider()
        return provider.get_model(self._model)

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        *settings: Any,
        **options: Any,
    ) -> ModelResponse:
        """The answer, asked for or stored. The model gets the settings and options of `Model.get_response` as they are."""
        step = await self._begin(input)
        with step:
            if not step.begun.must_run:
                response = _decode_response(_stored(step, "response"))
            else:
                response = await self.inner.get_response(system_instructions, input, *settings, **options)
                await self._end(step, {"response": _encode_response(response)})
        self._spent(response.usage.input_tokens, response.usage.output_tokens)
        return response

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        *settings: Any,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        """The events of the answer; the last one is passed on when the answer is stored. See `Model.stream_response`."""
        step = await self._begin(input)
        with step:
            if not step.begun.must_run:
                completed = _decode_completed(_stored(step, "completed"))
                self._spent_by(completed)
                yield completed
                return
            items: list[Any] = []
            async for event in self.inner.stream_response(system_instructions, input, *settings, **options):
                if isinstance(event, ResponseOutputItemDoneEvent):
                    items.append(event.item)
                if isinstance(event, ResponseCompletedEvent):
                    event.response.output = event.response.output or items
                    await self._end(step, {"completed": _encode_completed(event)})
                    self._spent_by(event)
                yield event

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """As the model says."""
        return self.inner.get_retry_advice(request)

    async def close(self) -> None:
        """Closes the model, and the provider of this object if it has made one."""
        if isinstance(self._model, Model):
            await self._model.close()
        if self._own_provider is not None:
            await self._own_provider.aclose()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self.inner._cleanup_on_run_end(owner)

    def _supports_default_prompt_cache_key(self) -> bool:
        supports = getattr(self.inner, "_supports_default_prompt_cache_key", None)
        return bool(supports()) if callable(supports) else False

    async def _begin(self, input: str | list[TResponseInputItem]) -> Step:
        link_of(self._run).check()
        if self._run.sync._turn is None:
            raise RuntimeError("a guarded agent runs inside of a turn: use run_agent, or `async with run.turn()`")
        name = f"model.{self._name}"
        if scope.get():
            name = f"{name}.{digest(scope.get() + _json.canonical(input))}"
        return await link_of(self._run).send(self._run, self._run.sync._begin_step, name)

    async def _end(self, step: Step, answer: dict[str, Any]) -> None:
        await link_of(self._run).send(self._run, self._run.sync._end_step, step, answer)

    def _spent_by(self, event: ResponseCompletedEvent) -> None:
        usage = event.response.usage
        if usage is not None:
            self._spent(usage.input_tokens, usage.output_tokens)

    def _spent(self, tokens_in: int, tokens_out: int) -> None:
        self._run.sync._spend(tokens_in=tokens_in or 0, tokens_out=tokens_out or 0)


def _stored(step: Step, kind: str) -> dict[str, Any]:
    """A stored answer. Errors: `Diverged` if the other method of the class stored it."""
    if kind not in step.begun.result:
        raise Diverged("the model's answer was stored for a streamed run and is read by one that is not, or the reverse")
    answer: dict[str, Any] = step.begun.result[kind]
    return answer


def _encode_response(response: ModelResponse) -> dict[str, Any]:
    return {
        "output": [_plain(item) for item in response.output],
        "usage": serialize_usage(response.usage),
        "responseId": response.response_id,
        "requestId": response.request_id,
        "rawUsage": response.raw_usage,
    }


def _decode_response(stored: dict[str, Any]) -> ModelResponse:
    usage: Usage = deserialize_usage(stored["usage"])
    output = Response.construct(output=stored["output"]).output
    return ModelResponse(output, usage, stored["responseId"], stored["requestId"], stored["rawUsage"])


def _encode_completed(event: ResponseCompletedEvent) -> dict[str, Any]:
    return {**_plain(event), "requestId": getattr(event.response, "_request_id", None)}


def _decode_completed(stored: dict[str, Any]) -> ResponseCompletedEvent:
    """The vendor's own lenient reading: what a provider leaves out stays out."""
    request_id = stored.pop("requestId", None)
    event = ResponseCompletedEvent.construct(**stored)
    event.response._request_id = request_id
    return event


def _plain(value: Any) -> Any:
    """A vendor's object as JSON, without the fields that nobody has set."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(mode="json", exclude_unset=True)
