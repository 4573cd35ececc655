"""Requests for speech tokens against an engine: admission, checks, abort, events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.errors import ContextTooLongError, InferenceError, InvalidMessageError
from parley.llm.engine import Engine, Progress
from parley.runtime.admission import Admission
from parley.tts.t3.checkpoint import T3Shape, Variant
from parley.tts.t3.messages import (
    SpeechSampling,
    SpeechTokensEvent,
    SpeechTokensRequest,
    TokensCompleted,
    TokensDrawn,
)
from parley.tts.t3.request import Drawing, PromptSource, TokenGeneration, TokenVoice
from parley.tts.t3.side_channel import MAX_PROMPT
from parley.tts.t3.text import TokenTextReader
from parley.tts.t3.vocabulary import SPEECH_CODES

# Of the published code.
_DEFAULTS: dict[Variant, Drawing] = {
    "original": Drawing(0.8, 1.0, 0, 0.05, 1.2),
    "multilingual": Drawing(0.8, 1.0, 0, 0.05, 2.0),
    "turbo": Drawing(0.8, 0.95, 1000, 0.0, 1.2),
}


def drawing(sampling: SpeechSampling, variant: Variant) -> Drawing:
    """What a request asks for, completed by what its checkpoint was published with."""
    default = _DEFAULTS[variant]
    return Drawing(
        default.temperature if sampling.temperature is None else sampling.temperature,
        default.top_p if sampling.top_p is None else sampling.top_p,
        default.top_k if sampling.top_k is None else sampling.top_k,
        default.min_p if sampling.min_p is None else sampling.min_p,
        default.repetition_penalty if sampling.repetition_penalty is None else sampling.repetition_penalty,
        sampling.seed,
    )


def check_drawing(drawing: Drawing, *, guided: bool) -> None:
    """Refuse what cannot be drawn by.

    Raises:
        InvalidMessageError: a value is out of range, or the checkpoint does not know it.
    """
    # Written so that NaN fails.
    if not 0.0 <= drawing.temperature <= 2.0:
        raise InvalidMessageError(f"temperature {drawing.temperature} is not between 0 and 2")
    if not 0.0 < drawing.top_p <= 1.0:
        raise InvalidMessageError(f"top_p {drawing.top_p} is not above 0 and at most 1")
    if drawing.top_k < 0:
        raise InvalidMessageError(f"top_k {drawing.top_k} is negative")
    if not 0.0 <= drawing.min_p <= 1.0:
        raise InvalidMessageError(f"min_p {drawing.min_p} is not between 0 and 1")
    if drawing.min_p and not guided:
        raise InvalidMessageError("this checkpoint does not know min_p")
    if not 1.0 <= drawing.repetition_penalty <= 4.0:
        raise InvalidMessageError(f"repetition_penalty {drawing.repetition_penalty} is not between 1 and 4")
    if drawing.seed is not None and not 0 <= drawing.seed < 2**63:
        raise InvalidMessageError(f"seed {drawing.seed} is negative or too large")


Tokens = NDArray[np.int32]
_NO_TOKENS = np.zeros(0, np.int32)


@dataclass(frozen=True)
class TokenUtterance:
    """One request with its tensors."""

    request: SpeechTokensRequest
    voice: TokenVoice
    text_tokens: Sequence[int] | None = None
    """In place of the request's text."""


class SpeechTokenService:
    """Answers :class:`TokenUtterance` on one event loop.

    Args:
        engine: runs the model.
        prompts: computes the prompts.
        reader: reads text.
        shape: of the checkpoint.
        max_length: positions of a prompt and its speech together.
        max_requests: requests running or waiting at once; more are refused.
        clock: seconds, never going back.
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
        self, utterance: TokenUtterance
    ) -> AsyncGenerator[tuple[SpeechTokensEvent, Tokens], None]:
        """Stream the utterance's speech tokens; the last event is ``TokensCompleted``.

        Tokens that are marks are drawn like the others, but not sent.

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
            async with aclosing(self._run(utterance)) as events:
                async for event in events:
                    yield event

    async def abort(self, request_id: str) -> None:
        """Stop a request: running, waiting, or still on its way here."""
        # Also for one that runs: the engine does not have it while its prompt is being computed.
        self._admission.abort_early(request_id)
        if request_id in self._admission:
            await self._engine.abort(request_id)

    async def _run(self, utterance: TokenUtterance) -> AsyncGenerator[tuple[SpeechTokensEvent, Tokens], None]:
        request = utterance.request
        wanted = await self._prepare(utterance)
        if self._admission.was_aborted(request.request_id):
            yield TokensCompleted(finish_reason="abort"), _NO_TOKENS
            return
        outlet = _Outlet(request.chunk_tokens)
        last, generated = Progress(), 0
        async with aclosing(self._engine.generate(wanted)) as progress:
            async for step in progress:
                last = step
                generated += len(step.token_ids)
                if event := outlet.add(step):
                    yield event
        if last.finish_reason is None:
            raise InferenceError("the engine ended the utterance without a reason")
        # An abort that the engine carried out must not meet a later request of this name.
        self._admission.was_aborted(request.request_id)
        completed = TokensCompleted(
            finish_reason=last.finish_reason,
            prompt_positions=len(wanted.prompt.ids),
            cached_positions=last.cached_tokens,
            generated_tokens=generated,
            spoken_tokens=outlet.sent,
        )
        yield completed, _NO_TOKENS

    async def _prepare(self, utterance: TokenUtterance) -> TokenGeneration:
        request = utterance.request
        drawn = drawing(request.sampling, self._shape.variant)
        check_drawing(drawn, guided=self._shape.guided)
        _check(request)
        text = utterance.text_tokens
        if text is None:
            text = self._reader.read(request.text, request.language)
        if not all(0 <= token < self._shape.text_vocabulary for token in text):
            raise InvalidMessageError(f"text tokens go from 0 to {self._shape.text_vocabulary - 1}")
        longest = min(self._shape.max_text, MAX_PROMPT - self._longest_head())
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
        return TokenGeneration(request.request_id, prompt, min(request.max_tokens, room), drawn)

    def _longest_head(self) -> int:
        """Positions of a prompt besides the text."""
        return 36 if self._shape.guided else self._shape.max_prompt_tokens + 2


class _Outlet:
    """Collects the tokens that are spoken into events."""

    def __init__(self, chunk_tokens: int) -> None:
        self._chunk_tokens = chunk_tokens
        self._waiting: list[int] = []
        self.sent = 0

    def add(self, step: Progress) -> tuple[TokensDrawn, Tokens] | None:
        """The next event, if it is time for one; nothing waits after the last step."""
        self._waiting += [token for token in step.token_ids if token < SPEECH_CODES]
        due = 1 if step.finish_reason else self._chunk_tokens
        if len(self._waiting) < due:
            return None
        tokens, self._waiting = np.array(self._waiting, np.int32), []
        event = TokensDrawn(offset=self.sent)
        self.sent += len(tokens)
        return event, tokens


def _check(request: SpeechTokensRequest) -> None:
    # Written so that NaN fails.
    if not 0.0 <= request.exaggeration <= 2.0:
        raise InvalidMessageError(f"exaggeration {request.exaggeration} is not between 0 and 2")
    if not 0.0 <= request.guidance_weight <= 1.0:
        raise InvalidMessageError(f"guidance_weight {request.guidance_weight} is not between 0 and 1")
    if request.max_tokens < 1:
        raise InvalidMessageError(f"max_tokens {request.max_tokens} is less than 1")
    if request.chunk_tokens < 1:
        raise InvalidMessageError(f"chunk_tokens {request.chunk_tokens} is less than 1")
