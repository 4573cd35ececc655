"""``POST /v1/speak``: a text to a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from starlette.responses import Response

from parley.errors import InvalidMessageError
from parley_client.stages import Synthesis
from parley_gateway.apis.deepgram.messages import Transaction, read_message
from parley_gateway.apis.deepgram.query import FileFormat, SpeakOptions, file_format, read_query, voice_of
from parley_gateway.audio.codecs import AudioFormat, Encoder
from parley_gateway.audio.encoding import MEDIA_TYPES, encode_all, make_encoder
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.principal import Principal
from parley_gateway.streaming import stream

_RAW_TYPES = {"pcm16": "audio/l16", "ulaw": "audio/mulaw", "alaw": "audio/alaw"}


class SpeakBody(msgspec.Struct, frozen=True, kw_only=True):
    """A text."""

    text: str


class SpeechRoute:
    """Speaks texts."""

    def __init__(self, gateway: Gateway, desk: ModelLimiter) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.stages
        self._desk = desk

    async def create(self, request: Request) -> Response:
        """Speak a text: the audio is sent while it is being made."""
        principal = await self._gateway.guard.admit(request, "speak")
        options = read_query(request.query_params, SpeakOptions)
        form = file_format(options)
        text = read_message((await request.body()).decode(errors="replace"), SpeakBody).text
        if not 0 < len(text.strip()) <= self._settings.speech_characters:
            raise InvalidMessageError(
                f"a text has 1 to {self._settings.speech_characters} characters; this one has {len(text)}"
            )
        headers = {"dg-char-count": str(len(text))}
        if isinstance(form, FileFormat):
            media_type = MEDIA_TYPES[form.form]
        else:
            media_type = f"{_RAW_TYPES[form.encoding]};rate={form.sample_rate}"
        return await stream(
            request,
            self._speak(principal, text, voice_of(options), form, headers),
            media_type=media_type,
            stall_s=self._settings.stall_s,
            headers=headers,
        )

    async def _speak(
        self,
        principal: Principal,
        text: str,
        voice: str | None,
        form: FileFormat | AudioFormat,
        headers: dict[str, str],
    ) -> AsyncGenerator[bytes, None]:
        """The file; ``headers`` name the synthesizer that has the voice before its first part is there."""
        rate = form.sample_rate if isinstance(form, FileFormat) else form.agent_rate
        encoder = make_encoder(form.form, rate) if isinstance(form, FileFormat) else _Raw(form, rate)
        with self._desk.lease(principal) as server:
            async with Synthesis(server, model=self._settings.synthesizer) as synthesis:
                transaction = Transaction(await synthesis.synthesizer_of(voice))
                headers |= {**transaction.headers, "dg-model-name": transaction.model}
                async with (
                    synthesis.speak(text, voice=voice, sample_rate=rate) as speech,
                    aclosing(encode_all(encoder, speech)) as encoded,
                ):
                    async for part in encoded:
                        yield part


class _Raw:
    """Audio without a container."""

    def __init__(self, form: AudioFormat, rate: int) -> None:
        self._encoder = Encoder(form, rate)

    def encode(self, samples: NDArray[np.int16]) -> bytes:
        """The next bytes."""
        return self._encoder.encode(samples)

    def finish(self) -> bytes:
        """Nothing is kept back."""
        return b""
