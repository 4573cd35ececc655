"""``WS /v1/speak``: text to a stream of speech."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal

from starlette.websockets import WebSocket

from parley.errors import InvalidMessageError, OverloadedError, ParleyError
from parley_client.stages import Speech, Synthesis
from parley_gateway.apis.deepgram import messages as forms
from parley_gateway.apis.deepgram.errors import close_for, message_of, refuse
from parley_gateway.apis.deepgram.idle import IdleLimit
from parley_gateway.apis.deepgram.query import SpeakOptions, raw_format, read_query, voice_of
from parley_gateway.audio.codecs import AudioFormat, Encoder
from parley_gateway.closing import Close
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.meter import Meter
from parley_gateway.sockets import accept, messages, run_socket, until_going_away
from parley_gateway.writer import SocketWriter

_DONE = Close(1000, "")
_MOST_WAITING = 64


async def serve_speaking(websocket: WebSocket, gateway: Gateway, desk: ModelLimiter) -> None:
    """Carry one voice over one WebSocket."""
    settings = gateway.settings.stages
    speaking = None
    try:
        principal = await gateway.guard.admit(websocket, "speak")
        options = read_query(websocket.query_params, SpeakOptions)
        form = raw_format(options)
        voice = voice_of(options)
        with desk.lease(principal) as server:
            idle_s = settings.voice_idle_s
            async with Synthesis(server, model=settings.synthesizer, idle_s=idle_s) as synthesis:
                model = await synthesis.synthesizer_of(voice)
                if voice is not None:
                    await synthesis.check_voice(voice)
                await accept(websocket, "token")
                meter = gateway.guard.meter(principal)
                begin = partial(synthesis.begin, voice=voice, sample_rate=form.agent_rate)
                speaking = _Speaking(websocket, begin, gateway, form, meter, model=model)
                await speaking.run()
    except ParleyError as error:
        if speaking is not None:
            raise
        await refuse(websocket, error, gateway)


class _Turn:
    """What is said between two ``Flush``."""

    def __init__(self, speech: Speech | None = None) -> None:
        self.speech = speech  # None: nothing came between them


class _Speaking:
    """The two directions of one open voice."""

    def __init__(
        self,
        websocket: WebSocket,
        begin: Callable[[], Speech],
        gateway: Gateway,
        form: AudioFormat,
        meter: Meter,
        *,
        model: str,
    ) -> None:
        self._websocket = websocket
        self._begin = begin
        self._gateway = gateway
        self._form = form
        self._meter = meter
        self._writer = SocketWriter(websocket, gateway.settings.writer, gateway.metrics)
        self._transaction = forms.Transaction(model)
        self._growing: Speech | None = None
        self._turns: deque[_Turn] = deque()  # the first is being spoken
        self._changed = asyncio.Event()
        self._closing = False
        self._idle = IdleLimit(gateway.settings.stages.voice_idle_s, "text")
        self._numbered = 0

    async def run(self) -> None:
        """Until one side ends it."""
        self._writer.send_json(self._transaction.voice_metadata)
        await run_socket(
            self._writer,
            self._gateway,
            self._hear(),
            self._speak(),
            until_going_away(self._gateway),
            on_error=self._tell_error,
        )

    def _tell_error(self, error: ParleyError) -> None:
        self._writer.send_json(message_of(error))
        self._writer.close(*close_for(error))

    # --- from the client --------------------------------------------------------------------

    async def _hear(self) -> None:
        """Until the client has gone."""
        source = messages(self._websocket, self._meter, self._gateway)
        async for message in self._idle.each(source):
            if isinstance(message, bytes):
                raise InvalidMessageError("a voice takes no audio")
            self._take(forms.read_message(message, forms.SpeakMessage))
            self._changed.set()

    def _take(self, message: forms.SpeakMessage) -> None:
        match message:
            case forms.Speak():
                self._write(message.text)
            case forms.Flush():
                self._flush()
            case forms.Clear():
                self._clear()
            case forms.CloseSpeech():
                if self._growing is not None:
                    self._flush()
                self._closing = True

    def _write(self, text: str) -> None:
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
        if len(self._turns) >= _MOST_WAITING:
            raise OverloadedError(f"{len(self._turns)} texts are waiting to be spoken already")
        self._turns.append(turn)

    def _clear(self) -> None:
        for turn in self._turns:
            if turn.speech is not None:
                turn.speech.stop()
        self._turns.clear()
        self._growing = None
        self._tell("Cleared")

    # --- to the client ----------------------------------------------------------------------

    async def _speak(self) -> None:
        """Until the client wants no more."""
        while True:
            while not self._turns:
                if self._closing:
                    self._writer.close(*_DONE)
                    return
                self._changed.clear()
                await self._changed.wait()
            turn = self._turns[0]
            if turn.speech is not None:
                await self._say(turn, turn.speech)
            if self._is_current(turn):
                self._turns.popleft()
                self._tell("Flushed")

    async def _say(self, turn: _Turn, speech: Speech) -> None:
        encoder: Encoder | None = None
        async with speech:
            async for piece in speech:
                await self._writer.wait_for_room()
                if not self._is_current(turn):
                    return  # it was cleared meanwhile
                encoder = encoder or Encoder(self._form, piece.sample_rate)
                # The client of a long text has nothing to send while it is spoken.
                self._idle.touch()
                if audio := encoder.encode(piece.samples):
                    self._writer.send_bytes(audio)

    def _is_current(self, turn: _Turn) -> bool:
        return bool(self._turns) and self._turns[0] is turn

    def _tell(self, kind: Literal["Flushed", "Cleared"]) -> None:
        self._writer.send_json(forms.counted(kind, self._numbered))
        self._numbered += 1
