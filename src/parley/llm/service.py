"""Chat requests against an engine: admission, abort, tool calls, typed events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from parley.errors import InferenceError, InvalidMessageError
from parley.llm.chat import PromptBuilder
from parley.llm.engine import Engine, EngineRequest, Progress
from parley.llm.messages import (
    Completed,
    GenerateRequest,
    LlmEvent,
    Sampling,
    TextDelta,
    ToolCall,
    ToolCalled,
)
from parley.llm.tool_stream import BadCall, Piece, Text, ToolStream
from parley.serving.admission import Admission


class ChatService:
    """Answers :class:`GenerateRequest` on one event loop.

    Args:
        engine: runs the model.
        prompts: renders the model's prompts.
        max_requests: requests running or waiting at once; more are refused.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        engine: Engine[EngineRequest],
        prompts: PromptBuilder,
        *,
        max_requests: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._admission = Admission(max_requests, clock=clock)

    @property
    def active(self) -> int:
        """Requests running or waiting."""
        return len(self._admission)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[LlmEvent, None]:
        """Stream the answer; the last event is ``Completed``.

        Raises:
            InvalidMessageError: the id is in use, a sampling value is out of range, or the
                messages cannot be rendered.
            OverloadedError: too many requests already.
            ContextTooLongError: the conversation does not fit.
            InferenceError: the engine failed, or the model wrote a call that cannot be read.
        """
        request_id = request.request_id
        if self._admission.was_aborted(request_id):
            yield Completed(finish_reason="abort")
            return
        with self._admission.place(request_id):
            async with aclosing(self._run(request)) as events:
                async for event in events:
                    yield event

    async def abort(self, request_id: str) -> None:
        """Stop a request: running, waiting, or still on its way here."""
        if request_id in self._admission:
            await self._engine.abort(request_id)
        else:
            self._admission.abort_early(request_id)

    async def _run(self, request: GenerateRequest) -> AsyncGenerator[LlmEvent, None]:
        sampling = request.sampling
        _check(sampling)
        prompt = self._prompts.build(request.messages, request.tools, sampling.max_tokens)
        parser = ToolStream()
        last = Progress()
        calls = tokens = 0
        progress = self._engine.generate(
            EngineRequest(
                request.request_id,
                prompt.ids,
                prompt.max_tokens,
                sampling.temperature,
                sampling.top_p,
                sampling.seed,
            )
        )
        async with aclosing(progress):
            async for step in progress:
                last = step
                tokens += step.tokens
                pieces = parser.feed(step.text)
                if step.finish_reason in ("stop", "length"):
                    pieces += parser.finish()
                for piece in pieces:
                    event = _event(piece, f"{request.request_id}-{calls}")
                    calls += isinstance(event, ToolCalled)
                    yield event
        if last.finish_reason is None:
            raise InferenceError("the engine ended the answer without a reason")
        yield Completed(
            finish_reason="tool_calls" if calls and last.finish_reason == "stop" else last.finish_reason,
            prompt_tokens=len(prompt.ids),
            cached_tokens=last.cached_tokens,
            completion_tokens=tokens,
        )


def _event(piece: Piece, call_id: str) -> LlmEvent:
    if isinstance(piece, Text):
        return TextDelta(text=piece.text)
    if isinstance(piece, BadCall):
        raise InferenceError(f"the model wrote a tool call that cannot be read: {piece.reason}")
    return ToolCalled(call=ToolCall(id=call_id, name=piece.name, arguments=piece.arguments))


def _check(sampling: Sampling) -> None:
    # Written so that NaN fails.
    if not 0.0 <= sampling.temperature <= 2.0:
        raise InvalidMessageError(f"temperature {sampling.temperature} is not between 0 and 2")
    if not 0.0 < sampling.top_p <= 1.0:
        raise InvalidMessageError(f"top_p {sampling.top_p} is not above 0 and at most 1")
    if sampling.max_tokens < 1:
        raise InvalidMessageError(f"max_tokens {sampling.max_tokens} is less than 1")
    if sampling.seed is not None and not 0 <= sampling.seed < 2**63:
        raise InvalidMessageError(f"seed {sampling.seed} is negative or too large")
