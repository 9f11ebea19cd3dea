"""One run of a guarded tool: its key, and how it ended."""

from __future__ import annotations

import functools
from typing import Annotated, Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolArg
from langgraph.errors import GraphBubbleUp

from dalsegno._errors import CallFailed, Error, KeyRefused, Unhandled

Key = Annotated[str, InjectedToolArg]
"""The type of a tool's parameter `key: Key = ""`, which gets the call's key. The model does not see it."""

NOT_DONE = {"dalsegno": "notDone"}
"""The stored result of a call that has certainly changed nothing. The next try is another call."""


class Running:
    """One run of a tool: the request for it, and how it ended."""

    def __init__(self, request: Any, key: str, policy: str) -> None:
        self._policy = policy
        self._refused_key: KeyRefused | None = None
        self._interrupt: GraphBubbleUp | None = None
        self._ran = self._returned_message = False
        # LangGraph removes what a call says about hidden parameters, so the key is added when the tool runs.
        self._hidden = {"key": key} if "key" in _hidden_parameters(request.tool) else {}
        self.request = request.override(tool=self._strict(request.tool))

    def over(self, result: Any) -> tuple[str, Any]:
        """The outcome and the result where LangGraph has returned. Arguments that do not fit are a refusal."""
        if isinstance(result, ToolMessage) and result.status == "error":
            if not self._ran:
                return "failed", result.content
            if self._policy != "readOnly" and not self._returned_message:
                raise Unhandled(Error(f"the tool ran, and its answer is none that LangGraph can use: {result.content}"))
        return "completed", result

    def failed(self, error: BaseException) -> tuple[str, Any]:
        """The outcome and the result where LangGraph has raised. Errors: `error`, where the outcome is unknown."""
        cause = error.error if isinstance(error, Unhandled) else error
        if isinstance(cause, CallFailed):
            return cause.outcome, "the tool has refused" if cause.result is None else cause.result
        if isinstance(cause, KeyRefused):
            self._refused_key = cause
            return cause.outcome, cause.result
        if isinstance(cause, GraphBubbleUp) and self._policy in ("probe", "ask"):
            # An interrupt stops the tool, and LangGraph runs it again from its start: what came before has no effect.
            self._interrupt = cause
            return "failed", NOT_DONE
        if (
            self._ran
            and self._policy != "readOnly"
            and isinstance(error, Exception)
            and not isinstance(error, GraphBubbleUp)
        ):
            raise Unhandled(error) from error
        raise error

    def raise_if_refused(self) -> None:
        """Ends the graph if the tool refused the key, and interrupts it if the tool has."""
        if self._refused_key is not None:
            raise Unhandled(self._refused_key) from self._refused_key
        if self._interrupt is not None:
            raise self._interrupt

    def _strict(self, tool: Any) -> Any:
        """The tool, whose own errors pass LangGraph's handlers. Errors of its arguments still reach them."""
        strict = tool.model_copy()
        run, arun = tool._run, tool._arun

        @functools.wraps(run)
        def strict_run(*args: Any, **kwargs: Any) -> Any:
            self._ran = True
            try:
                return self._noted(run(*args, **{**kwargs, **self._hidden}))
            except Exception as error:
                raise self._carried(error) from error

        @functools.wraps(arun)
        async def strict_arun(*args: Any, **kwargs: Any) -> Any:
            self._ran = True
            try:
                return self._noted(await arun(*args, **{**kwargs, **self._hidden}))
            except Exception as error:
                raise self._carried(error) from error

        # Attributes of the instance come before the methods of its class.
        strict.__dict__.update(_run=strict_run, _arun=strict_arun)
        return strict

    def _noted(self, returned: Any) -> Any:
        self._returned_message = isinstance(returned, (ToolMessage, list))
        return returned

    def _carried(self, error: Exception) -> BaseException:
        refused = isinstance(error, (CallFailed, KeyRefused))
        passes = isinstance(error, GraphBubbleUp) or (self._policy == "readOnly" and not refused)
        return error if passes else Unhandled(error)


def _hidden_parameters(tool: Any) -> set[str]:
    """The parameters of a tool that the model does not see."""
    if isinstance(tool.args_schema, dict):
        return set()
    return {*tool.get_input_schema().model_fields} - {*tool.tool_call_schema.model_fields}
