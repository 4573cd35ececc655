"""Requests for speech tokens against an engine: admission, checks, abort, events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.errors import ContextTooLongError, InferenceError, InvalidMessageError
from parley.llm.engine import Engine, EngineTimes, Progress
from parley.runtime.admission import Admission
from parley.tracing import NO_TRACE, Trace
from parley.tts.voice_messages import Variant
from parley_torch.tts.t3.checkpoint import T3Shape
from parley_torch.tts.t3.messages import (
    SpeechSampling,
    SpeechTokensEvent,
    SpeechTokensRequest,
    TokensCompleted,
    TokensDrawn,
    check_range,
)
from parley_torch.tts.t3.request import (
    MAX_PROMPT,
    SPEECH_CODES,
    TokenGeneration,
    TokenPrompt,
    TokenSampling,
    TokenVoice,
)
from parley_torch.tts.t3.text import TokenTextReader

Tokens = NDArray[np.int32]

_NO_TOKENS = np.zeros(0, np.int32)
_DEFAULTS: dict[Variant, TokenSampling] = {  # of the published code
    "original": TokenSampling(0.8, 1.0, 0, 0.05, 1.2),
    "multilingual": TokenSampling(0.8, 1.0, 0, 0.05, 2.0),
    "turbo": TokenSampling(0.8, 0.95, 1000, 0.0, 1.2),
}


class PromptSource(Protocol):
    """See :class:`parley_torch.tts.t3.prompt.PromptEncoder`."""

    def encode(
        self, voice: TokenVoice, text: Sequence[int], *, exaggeration: float, guidance_weight: float
    ) -> TokenPrompt:
        """Compute the prompt of one utterance; may run in several threads at once."""
        ...


@dataclass(frozen=True)
class TokenUtterance:
    """One request with its tensors."""

    request: SpeechTokensRequest
    voice: TokenVoice
    text_tokens: Sequence[int] | None = None
    """In place of the request's text."""


class SpeechTokenService:
    """Serves :class:`TokenUtterance` on one event loop.

    ``max_length`` bounds a prompt and its speech together, in positions. More than ``max_requests`` requests
    at once are refused.
    """

    def __init__(
        self,
        engine: Engine[TokenGeneration],
        prompts: PromptSource,
        reader: TokenTextReader,
        shape: T3Shape,
        *,
        max_length: int,
        max_requests: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._reader = reader
        self._shape = shape
        self._max_length = max_length
        self._admission = Admission(max_requests, clock=clock)

    @property
    def active(self) -> int:
        """Requests running or waiting."""
        return len(self._admission)

    async def generate(
        self, utterance: TokenUtterance, span: Trace = NO_TRACE
    ) -> AsyncGenerator[tuple[SpeechTokensEvent, Tokens], None]:
        """Stream the utterance's speech tokens without marks; the last event is ``TokensCompleted``.

        ``span`` is of the request.

        Raises:
            InvalidMessageError: the id is in use, or a value is out of range.
            UnsupportedLanguageError: the checkpoint does not speak the language.
            OverloadedError: too many requests already.
            ContextTooLongError: the text is too long for one utterance.
            InferenceError: the engine failed.
        """
        request_id = utterance.request.request_id
        if self._admission.was_aborted(request_id):
            yield TokensCompleted(finish_reason="abort"), _NO_TOKENS
            return
        with self._admission.place(request_id):
            async with aclosing(self._run(utterance, span)) as events:
                async for event in events:
                    yield event

    async def abort(self, request_id: str) -> None:
        """Stop a request: running, waiting, or not received yet."""
        if self._admission.abort(request_id):
            await self._engine.abort(request_id)

    async def _run(
        self, utterance: TokenUtterance, span: Trace
    ) -> AsyncGenerator[tuple[SpeechTokensEvent, Tokens], None]:
        request = utterance.request
        generation = await self._prepare(utterance, span.traceparent)
        if self._admission.is_aborted(request.request_id):  # the engine did not have it yet
            yield TokensCompleted(finish_reason="abort"), _NO_TOKENS
            return
        chunker = _Chunker(request.chunk_tokens)
        last, generated = Progress(), 0
        times: EngineTimes | None = None
        try:
            async with aclosing(self._engine.generate(generation)) as progress:
                async for step in progress:
                    last, times = step, step.times or times
                    generated += len(step.token_ids)
                    if event := chunker.add(step):
                        yield event
        finally:
            # Also of a request that was aborted or has failed.
            span.set({"parley.tokens": generated, "parley.finish_reason": last.finish_reason})
            if times is not None:
                times.record(span)
        if last.finish_reason is None:
            raise InferenceError("the engine ended the utterance without a reason")
        completed = TokensCompleted(
            finish_reason=last.finish_reason,
            generated_tokens=generated,
            spoken_tokens=chunker.sent,
        )
        yield completed, _NO_TOKENS

    async def _prepare(self, utterance: TokenUtterance, traceparent: str) -> TokenGeneration:
        request = utterance.request
        _check_request(request)
        sampling = _decide_sampling(request.sampling, self._shape)
        text = utterance.text_tokens
        if text is None:
            text = self._reader.read(request.text, request.language)
        if not all(0 <= token < self._shape.text_vocabulary for token in text):
            raise InvalidMessageError(f"text tokens go from 0 to {self._shape.text_vocabulary - 1}")
        longest_head = 36 if self._shape.guided else self._shape.max_prompt_tokens + 2
        longest = min(self._shape.max_text, MAX_PROMPT - longest_head)
        if len(text) > longest:
            raise ContextTooLongError(f"the text has {len(text)} tokens; one utterance takes {longest}")
        prompt = await asyncio.to_thread(
            self._prompts.encode,
            utterance.voice,
            text,
            exaggeration=request.exaggeration,
            guidance_weight=request.guidance_weight,
        )
        room = min(self._max_length - len(prompt.ids), self._shape.max_speech)
        if room < 1:
            raise ContextTooLongError(
                f"the prompt has {len(prompt.ids)} positions; the model takes {self._max_length} with speech"
            )
        return TokenGeneration(
            request.request_id,
            prompt,
            min(request.max_tokens, room),
            sampling,
            priority=int(request.background),
            traceparent=traceparent,
        )


class _Chunker:
    """Collects the tokens that are spoken into events."""

    def __init__(self, chunk_tokens: int) -> None:
        self._chunk_tokens = chunk_tokens
        self._waiting: list[int] = []
        self.sent = 0

    def add(self, step: Progress) -> tuple[TokensDrawn, Tokens] | None:
        """The next event once it has enough tokens; the last step leaves none waiting."""
        self._waiting += [token for token in step.token_ids if token < SPEECH_CODES]
        due = 1 if step.finish_reason else self._chunk_tokens
        if len(self._waiting) < due:
            return None
        tokens, self._waiting = np.array(self._waiting, np.int32), []
        event = TokensDrawn(offset=self.sent)
        self.sent += len(tokens)
        return event, tokens


def _decide_sampling(requested: SpeechSampling, shape: T3Shape) -> TokenSampling:
    """The request's values, or those that the checkpoint was published with.

    Raises:
        InvalidMessageError: a value is out of range, or the checkpoint does not support it.
    """
    given = {field.name: getattr(requested, field.name) for field in fields(TokenSampling)}
    sampling = replace(
        _DEFAULTS[shape.variant], **{name: value for name, value in given.items() if value is not None}
    )
    check_range("temperature", sampling.temperature, 0, 2)
    if not 0.0 < sampling.top_p <= 1.0:  # written so that NaN fails
        raise InvalidMessageError(f"top_p {sampling.top_p} is not above 0 and at most 1")
    if sampling.top_k < 0:
        raise InvalidMessageError(f"top_k {sampling.top_k} is negative")
    check_range("min_p", sampling.min_p, 0, 1)
    if sampling.min_p and not shape.guided:
        raise InvalidMessageError("this checkpoint does not support min_p")
    check_range("repetition_penalty", sampling.repetition_penalty, 1, 4)
    if sampling.seed is not None and not 0 <= sampling.seed < 2**63:
        raise InvalidMessageError(f"seed {sampling.seed} is negative or too large")
    return sampling


def _check_request(request: SpeechTokensRequest) -> None:
    check_range("exaggeration", request.exaggeration, 0, 2)
    check_range("guidance_weight", request.guidance_weight, 0, 1)
    for name in ("max_tokens", "chunk_tokens"):
        if (value := getattr(request, name)) < 1:
            raise InvalidMessageError(f"{name} {value} is less than 1")
