"""``POST /v1/audio/speech``."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Literal

import msgspec
from fastapi import Request
from msgspec import Meta
from starlette.responses import Response

from parley_client.stages import Synthesis
from parley_gateway.apis.openai import events
from parley_gateway.apis.openai.bodies import read_json
from parley_gateway.apis.openai.errors import RefusedRequestError, unsupported
from parley_gateway.apis.openai.names import SYNTHESIZERS, choose_model
from parley_gateway.audio.encoding import MEDIA_TYPES, SpeechFormat, encode_all, make_encoder
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.openai_voices import OPENAI_VOICES
from parley_gateway.security.principal import Principal
from parley_gateway.streaming import stream

SAMPLE_RATE = 24_000
"""Hertz of all formats, as OpenAI's clients expect of ``pcm``."""


class NamedVoice(msgspec.Struct, frozen=True):
    """A voice by its id."""

    id: str


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text to be spoken."""

    input: str
    """What is said."""
    model: str
    """`espeak`, `piper`, `kokoro`, `chatterbox`, or the name of a model of OpenAI's for the gateway's own."""
    voice: str | NamedVoice
    """One of `/v1/audio/voices`; the names of OpenAI's voices stand for the default."""
    instructions: str | None = None
    """Ignored: no voice here can be told how to speak."""
    response_format: SpeechFormat | None = "mp3"
    speed: Annotated[float, Meta(ge=0.25, le=4)] | None = 1.0
    """Only 1 is supported."""
    stream_format: Literal["audio", "sse"] | None = "audio"
    language: str | None = None
    """Parley's own: of the text; English if nothing is said."""


class SpeechRoute:
    """Speaks texts."""

    def __init__(self, gateway: Gateway, desk: ModelLimiter) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.stages
        self._desk = desk

    async def create(self, request: Request) -> Response:
        """Speak a text: the audio is sent while it is being made."""
        principal = await self._gateway.guard.admit(request, "speak")
        wanted = await read_json(request, SpeechRequest)
        self._check(wanted)
        model = choose_model(wanted.model, SYNTHESIZERS, self._settings.synthesizer)
        form = wanted.response_format or "mp3"
        audio = self._speak(principal, wanted, model, form)
        as_events = wanted.stream_format == "sse"
        return await stream(
            request,
            events.with_failures(_as_events(audio)) if as_events else audio,
            media_type=events.MEDIA_TYPE if as_events else MEDIA_TYPES[form],
            stall_s=self._settings.stall_s,
        )

    def _check(self, wanted: SpeechRequest) -> None:
        limit = self._settings.speech_characters
        if not wanted.input.strip():
            raise RefusedRequestError("There is nothing to say.", param="input", reason="empty_string")
        if len(wanted.input) > limit:
            raise RefusedRequestError(
                f"The text has {len(wanted.input)} characters; at most {limit} are spoken at once.",
                param="input",
                reason="string_above_max_length",
            )
        if wanted.speed not in (None, 1.0):
            raise unsupported("speed", "is not supported: the voices speak at their own pace; leave it at 1")

    async def _speak(
        self, principal: Principal, wanted: SpeechRequest, model: str, form: SpeechFormat
    ) -> AsyncGenerator[bytes, None]:
        name = wanted.voice if isinstance(wanted.voice, str) else wanted.voice.id
        encoder = make_encoder(form, SAMPLE_RATE)
        with self._desk.lease(principal) as server:
            async with Synthesis(server, model=model) as synthesis:
                speech = synthesis.speak(
                    wanted.input,
                    voice=None if name in OPENAI_VOICES else name,
                    language=wanted.language or "en",
                    sample_rate=SAMPLE_RATE,
                )
                async with speech, aclosing(encode_all(encoder, speech)) as encoded:
                    async for part in encoded:
                        yield part


async def _as_events(audio: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(audio):
        async for part in audio:
            encoded = base64.b64encode(part).decode()
            yield events.event({"type": "speech.audio.delta", "audio": encoded})
    # Nothing here is counted in tokens.
    usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    yield events.event({"type": "speech.audio.done", "usage": usage})
