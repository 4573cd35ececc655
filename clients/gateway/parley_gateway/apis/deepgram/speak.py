"""``/v1/speak``: speech for streams of text by WebSocket, and for texts by POST."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec
from fastapi import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from parley.errors import InvalidMessageError, OverloadedError, ParleyError
from parley_gateway.apis.deepgram import messages
from parley_gateway.apis.deepgram.query import (
    FileFormat,
    SpeakOptions,
    file_format,
    own_voice,
    raw_format,
    read_query,
)
from parley_gateway.audio.codecs import AudioFormat, Encoder
from parley_gateway.audio.encoding import MEDIA_TYPES, encode_all, make_encoder
from parley_gateway.bodies import read_json
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.principal import Principal
from parley_gateway.streaming import StageRoute
from parley_gateway.tracing import caller_trace
from parley_gateway.voice_owners import check_voice
from parley_gateway.websocket import Close, IdleLimit, WebSocketSession, accept, refuse
from parley_stages import Speech, Synthesis

_DONE = Close(1000, "")
_MAX_WAITING = 64
_RAW_TYPES = {"pcm16": "audio/l16", "ulaw": "audio/mulaw", "alaw": "audio/alaw"}


async def serve_speaking(websocket: WebSocket, gateway: Gateway, limiter: ModelLimiter) -> None:
    """Speak one stream of text over one WebSocket."""
    settings = gateway.settings.stages
    session = None
    try:
        principal = await gateway.guard.admit(websocket, "speak")
        options = read_query(websocket.query_params, SpeakOptions)
        audio_format = raw_format(options)
        voice = own_voice(options.model)
        check_voice(voice, principal)
        with limiter.lease(principal) as server:
            idle_s = settings.voice_idle_s
            async with Synthesis(server, model=settings.synthesizer, idle_s=idle_s) as synthesis:
                model = await synthesis.synthesizer_of(voice)
                if voice is not None:
                    await synthesis.check_voice(voice)
                await accept(websocket, "token")
                begin = partial(
                    synthesis.begin,
                    voice=voice,
                    sample_rate=audio_format.agent_rate,
                    background=True,
                    traceparent=caller_trace(),
                )
                session = _SpeakSession(websocket, begin, gateway, audio_format, model=model)
                await session.run()
    except ParleyError as error:
        if session is not None:
            raise
        await refuse(websocket, error, gateway, messages.answer)


@dataclass(eq=False)
class _Turn:
    """The speech of the text between two ``Flush``; None: there was no text."""

    speech: Speech | None = None


class _SpeakSession(WebSocketSession):
    """Sends text to the synthesizer, and its audio to the client."""

    def __init__(
        self,
        websocket: WebSocket,
        begin: Callable[[], Speech],
        gateway: Gateway,
        audio_format: AudioFormat,
        *,
        model: str,
    ) -> None:
        self._idle = IdleLimit(gateway.settings.stages.voice_idle_s, "text")
        super().__init__(websocket, gateway, idle=self._idle)
        self._begin = begin
        self._format = audio_format
        self.writer.send_json(messages.Transaction(model).voice_metadata)
        self._growing: Speech | None = None
        self._turns: deque[_Turn] = deque()
        """The first is being spoken."""
        self._changed = asyncio.Event()
        self._closing = False
        self._numbered = 0

    def on_failed(self, error: ParleyError) -> None:
        """See :class:`WebSocketSession`."""
        self.writer.send_json(messages.message_of(error))
        self.writer.close(*messages.close_for(error))

    async def on_message(self, message: str | bytes) -> None:
        """See :class:`WebSocketSession`."""
        if isinstance(message, bytes):
            raise InvalidMessageError("speak accepts text messages only")
        content = read_json(message, messages.SpeakMessage, "the message")
        match content:
            case messages.Speak():
                self._append(content.text)
            case messages.Flush():
                self._flush()
            case messages.Clear():
                self._clear()
            case messages.CloseSpeech():
                if self._growing is not None:
                    self._flush()
                self._closing = True
        self._changed.set()

    def _append(self, text: str) -> None:
        if self._growing is None:
            self._growing = self._begin()
            self._add(_Turn(self._growing))
        self._growing.add(text)

    def _flush(self) -> None:
        if self._growing is None:
            self._add(_Turn())
        else:
            self._growing.finish()
            self._growing = None

    def _add(self, turn: _Turn) -> None:
        if len(self._turns) >= _MAX_WAITING:
            raise OverloadedError(f"{len(self._turns)} texts already wait to be spoken")
        self._turns.append(turn)

    def _clear(self) -> None:
        for turn in self._turns:
            if turn.speech is not None:
                turn.speech.stop()
        self._turns.clear()
        self._growing = None
        self._confirm("Cleared")

    async def send_events(self) -> None:
        """Speak queued texts until the client closes."""
        while True:
            while not self._turns:
                if self._closing:
                    self.writer.close(*_DONE)
                    return
                self._changed.clear()
                await self._changed.wait()
            turn = self._turns[0]
            if turn.speech is not None:
                await self._send_audio(turn, turn.speech)
            if self._is_current(turn):
                self._turns.popleft()
                self._confirm("Flushed")

    async def _send_audio(self, turn: _Turn, speech: Speech) -> None:
        encoder: Encoder | None = None
        async with speech:
            async for piece in speech:
                await self.writer.wait_for_room()
                if not self._is_current(turn):
                    return  # cleared
                encoder = encoder or Encoder(self._format, piece.sample_rate)
                # A client may be silent while its text is spoken.
                self._idle.touch()
                if audio := encoder.encode(piece.samples):
                    self.writer.send_bytes(audio)

    def _is_current(self, turn: _Turn) -> bool:
        return bool(self._turns) and self._turns[0] is turn

    def _confirm(self, kind: Literal["Flushed", "Cleared"]) -> None:
        self.writer.send_json(messages.counted(kind, self._numbered))
        self._numbered += 1


class SpeakBody(msgspec.Struct, frozen=True, kw_only=True):
    """The text to speak."""

    text: str


class SpeakRoute(StageRoute):
    """Speaks texts."""

    async def create(self, request: Request) -> Response:
        """Speak a text; the audio is sent while it is produced."""
        principal = await self._gateway.guard.admit(request, "speak")
        options = read_query(request.query_params, SpeakOptions)
        check_voice(own_voice(options.model), principal)
        form = file_format(options)
        text = read_json((await request.body()).decode(errors="replace"), SpeakBody, "the message").text
        if not 0 < len(text.strip()) <= self._settings.speech_characters:
            raise InvalidMessageError(
                f"a text has 1 to {self._settings.speech_characters} characters; this one has {len(text)}"
            )
        headers = {"dg-char-count": str(len(text))}
        if isinstance(form, FileFormat):
            media_type = MEDIA_TYPES[form.form]
        else:
            media_type = f"{_RAW_TYPES[form.encoding]};rate={form.sample_rate}"
        return await self._stream_response(
            request,
            self._speak(principal, text, own_voice(options.model), form, headers),
            media_type=media_type,
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
        """The file; the name of the synthesizer is added to ``headers`` before the first part."""
        rate = form.sample_rate if isinstance(form, FileFormat) else form.agent_rate
        encoder = make_encoder(form.form, rate) if isinstance(form, FileFormat) else Encoder(form, rate)
        with self._limiter.lease(principal) as server:
            async with Synthesis(server, model=self._settings.synthesizer) as synthesis:
                transaction = messages.Transaction(await synthesis.synthesizer_of(voice))
                headers |= {**transaction.headers, "dg-model-name": transaction.model}
                async with (
                    synthesis.speak(
                        text, voice=voice, sample_rate=rate, background=True, traceparent=caller_trace()
                    ) as speech,
                    aclosing(encode_all(encoder, speech)) as encoded,
                ):
                    async for part in encoded:
                        yield part
