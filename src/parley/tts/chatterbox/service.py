"""All utterances of one instance of the model."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import numpy as np

from parley.errors import (
    InvalidMessageError,
    ParleyError,
    SessionNotFoundError,
    ShuttingDownError,
    UnsupportedSampleRateError,
)
from parley.runtime.admission import Admission
from parley.tts.chatterbox.limits import ChatterboxLimits
from parley.tts.chatterbox.models import Send
from parley.tts.chatterbox.utterance import ChatterboxUtterance, Parts, Style
from parley.tts.messages import MoreText, SpeakRequest, SpeechChunk

_NOTHING = np.zeros(0, np.int16)
_RATES = (8_000, 48_000)
_SEEDS = 2**31
_NEUTRAL = 0.5  # of exaggeration and of guidance, as published
_log = logging.getLogger(__name__)


class ChatterboxService:
    """Answers requests on one event loop.

    Args:
        parts: the models and what they need.
        limits: of size and time.
        default_voice: of requests that name none.
        sample_rate: of requests that name none (hertz).
        draw_seed: chooses the seed of requests that bring none.
    """

    def __init__(
        self,
        parts: Parts,
        limits: ChatterboxLimits,
        *,
        default_voice: str = "default",
        sample_rate: int = 24_000,
        draw_seed: Callable[[], int] = lambda: random.randrange(_SEEDS),
    ) -> None:
        self._parts = parts
        self._limits = limits
        self._default_voice = default_voice
        self._sample_rate = sample_rate
        self._draw_seed = draw_seed
        self._admission = Admission(limits.max_utterances)
        self._utterances: dict[str, ChatterboxUtterance] = {}
        self._closed = False

    def __len__(self) -> int:
        """Utterances that are open."""
        return len(self._utterances)

    async def check_default_voice(self) -> None:
        """Log what requests that name no voice will be refused for, if they will be."""
        voice, limit_s = self._default_voice, self._limits.voice_s
        try:
            async with asyncio.timeout(limit_s):
                await self._parts.voices.get(voice)
        except TimeoutError:
            _log.warning("the store of voices does not answer within %g s: the model starts", limit_s)
        except ParleyError as error:
            _log.warning(
                "whoever names no voice is refused, because the default voice cannot be used: %s. Enroll one "
                "with `parley voices enroll --id %s`, or name another in default_voice (docs/voices.md)",
                error,
                voice,
            )

    async def speak(self, request: SpeakRequest, send: Send) -> None:
        """Speak an utterance; returns when it is over or was stopped.

        Args:
            request: opens it; if it is not final, more text comes by :meth:`push`.
            send: takes its audio.

        Raises:
            InvalidMessageError: the id is in use, or a value is out of range.
            UnsupportedSampleRateError: audio is not made at that rate.
            UnsupportedVoiceError: there is no such voice.
            UnsupportedLanguageError: the model does not speak the language.
            OverloadedError: too many utterances already, or too much text.
            SessionIdleError: no text came for too long.
            ShuttingDownError: the server is stopping.
            InferenceError: a model failed or was late.
        """
        if self._closed:
            raise ShuttingDownError("the model is being unloaded")
        if self._admission.was_aborted(request.request_id):
            return
        style = self._style(request)
        with self._admission.place(request.request_id):
            utterance = ChatterboxUtterance(request, style, self._parts, self._limits, send)
            self._utterances[request.request_id] = utterance
            try:
                if not request.final and not send(
                    SpeechChunk(sample_rate=style.sample_rate, offset=0), _NOTHING
                ):
                    return
                await utterance.run()
            finally:
                del self._utterances[request.request_id]
            if self._closed:
                raise ShuttingDownError("the model is being unloaded")

    def push(self, message: MoreText) -> None:
        """Add text to an utterance; never waits.

        Raises:
            SessionNotFoundError: it is not open.
            InvalidMessageError: the text is too long, comes after the end, or overtook something.
            OverloadedError: too much is waiting; the utterance stays as it was.
        """
        utterance = self._utterances.get(message.request_id)
        if utterance is None:
            raise SessionNotFoundError(f"utterance {message.request_id!r} is not open")
        utterance.push(message)

    async def stop(self, request_id: str) -> None:
        """Stop an utterance, also one that is still on its way here; returns when both models know."""
        utterance = self._utterances.get(request_id)
        if utterance is None:
            self._admission.abort_early(request_id)
        else:
            utterance.stop()
            await utterance.wait_ended()

    async def close(self) -> None:
        """End everything with ``shutting_down`` and take nothing new."""
        self._closed = True
        utterances = tuple(self._utterances.values())
        for utterance in utterances:
            utterance.stop()
        await asyncio.gather(*(utterance.wait_ended() for utterance in utterances))
        if utterances:
            _log.info("%d utterances were cut off", len(utterances))

    def _style(self, request: SpeakRequest) -> Style:
        rate = self._sample_rate if request.sample_rate is None else request.sample_rate
        if not _RATES[0] <= rate <= _RATES[1]:
            raise UnsupportedSampleRateError(f"{rate} Hz; it must be {_RATES[0]} to {_RATES[1]}")
        return Style(
            voice=self._default_voice if request.voice is None else request.voice,
            language=request.language.replace("_", "-").partition("-")[0].lower(),
            sample_rate=rate,
            exaggeration=_within("exaggeration", request.exaggeration, 2.0),
            guidance_weight=_within("guidance_weight", request.guidance_weight, 1.0),
            seed=self._seed(request.seed),
        )

    def _seed(self, seed: int | None) -> int:
        if seed is None:
            return self._draw_seed()
        if not 0 <= seed < _SEEDS:
            raise InvalidMessageError(f"seed {seed} is not between 0 and {_SEEDS - 1}")
        return seed


def _within(name: str, value: float | None, most: float) -> float:
    if value is None:
        return _NEUTRAL
    if not 0.0 <= value <= most:  # written so that NaN fails
        raise InvalidMessageError(f"{name} {value} is not between 0 and {most:g}")
    return value
