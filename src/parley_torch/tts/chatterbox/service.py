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
from parley.languages import primary_language
from parley.runtime.admission import Admission
from parley.tts.messages import MoreText, SpeakRequest, SpeechChunk
from parley.tts.requests import kept_free
from parley_torch.tts.chatterbox.limits import ChatterboxLimits
from parley_torch.tts.chatterbox.utterance import (
    SEEDS,
    ChatterboxParts,
    ChatterboxUtterance,
    Send,
    SpeakingStyle,
)
from parley_torch.tts.t3.messages import check_range

_NO_AUDIO = np.zeros(0, np.int16)
_RATES = (8_000, 48_000)
_NEUTRAL = 0.5  # of exaggeration and of guidance, as published
_log = logging.getLogger("parley.torch")


class ChatterboxService:
    """Serves requests on one event loop.

    ``default_voice``, ``sample_rate`` and ``draw_seed`` serve requests without a voice, rate or seed.
    """

    def __init__(
        self,
        parts: ChatterboxParts,
        limits: ChatterboxLimits,
        *,
        default_voice: str = "default",
        sample_rate: int = 24_000,
        draw_seed: Callable[[], int] = lambda: random.randrange(SEEDS),
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
        """Number of open utterances."""
        return len(self._utterances)

    async def check_default_voice(self) -> None:
        """Log a warning if requests without a voice will be refused."""
        voice, limit_s = self._default_voice, self._limits.voice_s
        try:
            async with asyncio.timeout(limit_s):
                await self._parts.voices.get(voice)
        except TimeoutError:
            _log.warning("the store of voices does not answer within %g s: the model starts", limit_s)
        except ParleyError as error:
            _log.warning(
                "requests without a voice are refused, because the default voice cannot be used: %s. Enroll "
                "one with `parley voices enroll --id %s`, or name another in default_voice (docs/speech.md)",
                error,
                voice,
            )

    async def speak(self, request: SpeakRequest, send: Send) -> None:
        """Speak an utterance; returns when it has ended or was stopped.

        If the request is not final, more text follows by :meth:`push`.

        Raises:
            InvalidMessageError: the id is in use, or a value is out of range.
            UnsupportedSampleRateError: audio is not made at that rate.
            UnsupportedVoiceError: the voice does not exist.
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
        spare = kept_free(request, self._limits.max_utterances)
        with self._admission.place(request.request_id, kept_free=spare):
            utterance = ChatterboxUtterance(request, style, self._parts, self._limits, send)
            self._utterances[request.request_id] = utterance
            try:
                opened = SpeechChunk(sample_rate=style.sample_rate, offset=0)
                if not request.final and not send(opened, _NO_AUDIO):
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
            InvalidMessageError: the text is too long, comes after the end, or overtook other text.
            OverloadedError: too much is waiting; the utterance stays as it was.
        """
        utterance = self._utterances.get(message.request_id)
        if utterance is None:
            raise SessionNotFoundError(f"utterance {message.request_id!r} is not open")
        utterance.push(message)

    async def stop(self, request_id: str) -> None:
        """Stop an utterance, also one not received yet; returns when both models have stopped it."""
        utterance = self._utterances.get(request_id)
        if utterance is None:
            self._admission.abort(request_id)
        else:
            utterance.stop()
            await utterance.wait_ended()

    async def close(self) -> None:
        """End all utterances with ``shutting_down`` and refuse new ones."""
        self._closed = True
        utterances = tuple(self._utterances.values())
        for utterance in utterances:
            utterance.stop()
        await asyncio.gather(*(utterance.wait_ended() for utterance in utterances))
        if utterances:
            _log.info("%d utterances were cut off", len(utterances))

    def _style(self, request: SpeakRequest) -> SpeakingStyle:
        rate = self._sample_rate if request.sample_rate is None else request.sample_rate
        if not _RATES[0] <= rate <= _RATES[1]:
            raise UnsupportedSampleRateError(f"{rate} Hz; it must be {_RATES[0]} to {_RATES[1]}")
        exaggeration = _NEUTRAL if request.exaggeration is None else request.exaggeration
        guidance_weight = _NEUTRAL if request.guidance_weight is None else request.guidance_weight
        seed = self._draw_seed() if request.seed is None else request.seed
        check_range("exaggeration", exaggeration, 0, 2)
        check_range("guidance_weight", guidance_weight, 0, 1)
        if not 0 <= seed < SEEDS:
            raise InvalidMessageError(f"seed {seed} is not between 0 and {SEEDS - 1}")
        return SpeakingStyle(
            voice=self._default_voice if request.voice is None else request.voice,
            language=primary_language(request.language),
            sample_rate=rate,
            exaggeration=exaggeration,
            guidance_weight=guidance_weight,
            seed=seed,
        )
