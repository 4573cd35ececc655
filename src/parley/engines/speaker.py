"""What all synthesizers that are models of the repository have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from parley.inference import ModelClient, ModelRequest, struct_tensor, tensor_struct
from parley.tts.catalogue import KnownVoice
from parley.tts.messages import AbortSpeech, SpeakRequest, SpeechChunk, SpeechRequest
from parley.tts.voice_routing import find_route

_ABORT_TIMEOUT_S = 5.0


class ModelSpeaker:
    """:class:`parley.engines.base.Synthesizer` over a model that is asked as :mod:`parley.tts.messages` says.

    Args:
        port: the way to the model.
        model: its name.
        timeout_s: seconds until the first chunk, or the next one, is overdue.
    """

    known_voices: Sequence[KnownVoice] | None = None
    """None: they come and go."""
    languages: Sequence[str] = ()

    def __init__(self, port: ModelClient, *, model: str, timeout_s: float) -> None:
        self._port = port
        self._model = model
        self._timeout_s = timeout_s

    @property
    def voices(self) -> Sequence[str] | None:
        """See :class:`parley.engines.base.Synthesizer`."""
        return None if self.known_voices is None else [voice.name for voice in self.known_voices]

    def check_known(self, voice: str | None, language: str) -> bool:
        """See :class:`parley.engines.base.Synthesizer`."""
        return find_route([(self._model, self)], voice, language).certain

    async def speak(
        self, request: SpeakRequest
    ) -> AsyncGenerator[tuple[SpeechChunk, NDArray[np.int16]], None]:
        """Stream the text's audio; text without anything to say has none.

        Closing it early does not stop the model: call :meth:`abort`.

        Raises:
            UnsupportedVoiceError: no voice of this name.
            UnsupportedLanguageError: no voice speaks this language.
            InferenceError: the model failed, is overloaded, or did not answer in time.
        """
        async with aclosing(self._port.stream(self._request(request, self._timeout_s))) as responses:
            async for response in responses:
                yield (
                    tensor_struct(response["CHUNK"], SpeechChunk),
                    response["AUDIO"].astype(np.int16, copy=False),
                )

    async def check_voice(self, voice: str) -> None:
        """Return if there is this voice.

        Raises:
            UnsupportedVoiceError: there is not.
            InferenceError: the model failed, is overloaded, or did not answer in time.
        """
        # A request without text needs its voice and has nothing to say.
        async with aclosing(self.speak(SpeakRequest(request_id=uuid4().hex, voice=voice))) as pieces:
            async for _ in pieces:
                pass

    async def abort(self, request_id: str) -> None:
        """Stop ``speak`` of this id at once.

        Raises:
            InferenceError: the model could not be told in time.
        """
        await self._tell(AbortSpeech(request_id=request_id))

    async def _tell(self, message: SpeechRequest) -> None:
        async with aclosing(self._port.stream(self._request(message, _ABORT_TIMEOUT_S))) as responses:
            async for _ in responses:
                pass

    def _request(self, message: SpeechRequest, timeout_s: float) -> ModelRequest:
        return ModelRequest(
            self._model,
            {"REQUEST": struct_tensor(message)},
            ("CHUNK", "AUDIO"),
            request_id=message.request_id,
            timeout_s=timeout_s,
            frees=isinstance(message, AbortSpeech),
        )
