"""Synthesizers that are models of the repository, as engines of the agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from uuid import uuid4

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.inference import DecoupledModel, ModelClient
from parley.tts.messages import AbortSpeech, MoreText, SpeakRequest, SpeechChunk
from parley.tts.synthesizers import KNOWN
from parley.tts.voice_messages import MULTILINGUAL
from parley.tts.voice_routing import KnownVoice, check_language, find_route

_ABORT_TIMEOUT_S = 5.0
_chunks = msgspec.json.Decoder(SpeechChunk)


class ModelSpeaker:
    """A :class:`parley.engines.base.Synthesizer` over a model that reads :mod:`parley.tts.messages`."""

    model: str
    timeout_s = 10.0
    known_voices: Sequence[KnownVoice] | None = None
    """None: voices are enrolled and deleted at run time."""
    languages: Sequence[str] = ()

    def __init__(
        self, client: ModelClient, *, model: str | None = None, timeout_s: float | None = None
    ) -> None:
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        self._model = DecoupledModel(
            client, model or self.model, ("CHUNK", "AUDIO"), _chunks, timeout_s=timeout_s
        )

    @property
    def voices(self) -> Sequence[str] | None:
        """See :class:`parley.engines.base.Synthesizer`."""
        return None if self.known_voices is None else [voice.name for voice in self.known_voices]

    def check_known(self, voice: str | None, language: str) -> bool:
        """See :class:`parley.engines.base.Synthesizer`."""
        route = find_route([(self._model.name, self)], voice, language)
        check_language(self.known_voices or (), route.voice, language, self.languages)
        return route.certain

    async def speak(
        self, request: SpeakRequest
    ) -> AsyncGenerator[tuple[SpeechChunk, NDArray[np.int16]], None]:
        """Stream the text's audio; text without words has none.

        Closing it early does not stop the model: call :meth:`abort`.

        Raises:
            UnsupportedVoiceError: no voice of this name.
            UnsupportedLanguageError: no voice speaks this language.
            InferenceError: the model failed, is overloaded, or did not answer in time.
        """
        async with aclosing(self._model.stream(request)) as responses:
            async for chunk, response in responses:
                yield chunk, response["AUDIO"].astype(np.int16, copy=False)

    async def check_voice(self, voice: str) -> None:
        """Check that a voice exists.

        Raises:
            UnsupportedVoiceError: it does not.
            InferenceError: the model failed, is overloaded, or did not answer in time.
        """
        # A request without text checks the voice and has no audio.
        async with aclosing(self.speak(SpeakRequest(request_id=uuid4().hex, voice=voice))) as pieces:
            async for _ in pieces:
                pass

    async def abort(self, request_id: str) -> None:
        """Stop ``speak`` of this id at once.

        Raises:
            InferenceError: the model did not answer in time.
        """
        await self._model.send(AbortSpeech(request_id=request_id), timeout_s=_ABORT_TIMEOUT_S, frees=True)


class KnownSpeaker(ModelSpeaker):
    """Speech from a model of :data:`parley.tts.synthesizers.KNOWN`: mono. See :class:`ModelSpeaker`.

    Args:
        timeout_s: for the first chunk, and between chunks; None: 10 s.
    """

    def __init__(self, client: ModelClient, *, model: str, timeout_s: float | None = None) -> None:
        super().__init__(client, model=model, timeout_s=timeout_s)
        self.known_voices, self.languages = KNOWN[model].voices, KNOWN[model].languages


class ChatterboxSpeaker(ModelSpeaker):
    """Speech from the model ``chatterbox``; see :class:`parley.engines.speech.ModelSpeaker`.

    It also speaks text that is not complete: :meth:`speak` a request that is not final, and after its first
    chunk call :meth:`more`.
    """

    model = "chatterbox"
    timeout_s = 20.0
    languages: Sequence[str] = tuple(sorted(MULTILINGUAL))
    """Languages of the multilingual checkpoint; other checkpoints accept only ``en``."""

    async def more(self, message: MoreText) -> None:
        """Add text; calls must not overlap.

        Raises:
            SessionNotFoundError: the request is not open.
            InvalidMessageError: the text is too long, or in the wrong place.
            OverloadedError: too much text waits; it may be added later.
            InferenceError: the model did not answer in time.
        """
        await self._model.send(message, timeout_s=_ABORT_TIMEOUT_S)
