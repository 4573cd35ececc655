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

from parley_gateway.apis.openai import rest
from parley_gateway.audio.encoding import MEDIA_TYPES, SpeechFormat, encode_all, make_encoder
from parley_gateway.openai_voices import OPENAI_VOICES
from parley_gateway.security.principal import Principal
from parley_gateway.streaming import StageRoute
from parley_gateway.tracing import caller_trace
from parley_gateway.voice_owners import check_voice
from parley_stages import Synthesis
from parley_stages.synthesis import SpeechOptions

SAMPLE_RATE_HZ = 24_000
"""Sample rate of all formats: OpenAI's clients expect it of ``pcm``."""


class SpeechVoice(msgspec.Struct, frozen=True):
    """A voice by its id."""

    id: str


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text to speak."""

    input: str
    """The text."""
    model: str
    """`espeak`, `piper`, `hibari`, `kokoro`, `chatterbox`, or the name of a model of OpenAI."""
    voice: str | SpeechVoice
    """One of `/v1/audio/voices`; the names of OpenAI's voices mean the default."""
    instructions: str | None = None
    """Ignored: no voice here takes instructions."""
    response_format: SpeechFormat | None = "mp3"
    speed: Annotated[float, Meta(ge=0.25, le=4)] | None = 1.0
    """Only 1 is supported."""
    stream_format: Literal["audio", "sse"] | None = "audio"
    language: str | None = None
    """An extension: the language of the text; the default is that of the voice, and English without one."""


class SpeechRoute(StageRoute):
    """Speaks texts."""

    async def create(self, request: Request) -> Response:
        """Speak a text; the audio is sent while it is produced."""
        principal = await self._gateway.guard.admit(request, "speak")
        wanted = await rest.read_json(request, SpeechRequest)
        self._check(wanted)
        model = rest.choose_model(wanted.model, rest.SYNTHESIZERS, self._settings.synthesizer)
        form = wanted.response_format or "mp3"
        audio = self._speak(principal, wanted, model, form)
        as_events = wanted.stream_format == "sse"
        return await self._stream_response(
            request,
            rest.with_failures(_as_events(audio)) if as_events else audio,
            media_type=rest.MEDIA_TYPE if as_events else MEDIA_TYPES[form],
        )

    def _check(self, wanted: SpeechRequest) -> None:
        limit = self._settings.speech_characters
        if not wanted.input.strip():
            raise rest.RefusedRequestError("The text is empty.", param="input", reason="empty_string")
        if len(wanted.input) > limit:
            raise rest.RefusedRequestError(
                f"The text has {len(wanted.input)} characters; at most {limit} are spoken at once.",
                param="input",
                reason="string_above_max_length",
            )
        if wanted.speed not in (None, 1.0):
            raise rest.unsupported("speed", "is not supported: leave it at 1")

    async def _speak(
        self, principal: Principal, wanted: SpeechRequest, model: str, form: SpeechFormat
    ) -> AsyncGenerator[bytes, None]:
        name = wanted.voice if isinstance(wanted.voice, str) else wanted.voice.id
        check_voice(name, principal)
        options: SpeechOptions = {
            "voice": None if name in OPENAI_VOICES else name,
            "sample_rate": SAMPLE_RATE_HZ,
            "background": True,
            "traceparent": caller_trace(),
        }
        if wanted.language:
            options["language"] = wanted.language
        encoder = make_encoder(form, SAMPLE_RATE_HZ)
        with rest.serving(wanted.model, model), self._limiter.lease(principal) as server:
            async with Synthesis(server, model=model) as synthesis:
                speech = synthesis.speak(wanted.input, **options)
                async with speech, aclosing(encode_all(encoder, speech)) as encoded:
                    async for part in encoded:
                        yield part


async def _as_events(audio: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(audio):
        async for part in audio:
            encoded = base64.b64encode(part).decode()
            yield rest.event({"type": "speech.audio.delta", "audio": encoded})
    # Speech has no tokens.
    usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    yield rest.event({"type": "speech.audio.done", "usage": usage})
