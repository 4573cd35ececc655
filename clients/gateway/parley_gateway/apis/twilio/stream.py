"""One telephone call: Twilio's Media Stream, connected with the agent."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import quoteattr

import msgspec
from starlette.websockets import WebSocket

from parley import protocol
from parley.errors import (
    InvalidAudioError,
    InvalidMessageError,
    OverloadedError,
    ParleyError,
)
from parley.timeouts import first_to_end, is_set_within
from parley_client.call import Call
from parley_client.errors import CallEndedError, CallLostError
from parley_client.events import AgentAudio, CallEvent
from parley_gateway.apis.sessions.kept import KeptSession
from parley_gateway.apis.sessions.messages import SessionResume
from parley_gateway.apis.sessions.record import SessionClaim
from parley_gateway.apis.settings import TwilioSettings
from parley_gateway.apis.twilio import messages
from parley_gateway.apis.twilio.signature import TwilioSignatures
from parley_gateway.apis.twilio.transfers import XML, Transfers, dial
from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder, Encoder
from parley_gateway.errors import ForbiddenError, SessionExpiredError
from parley_gateway.gateway import Gateway
from parley_gateway.security.audit import audit
from parley_gateway.websocket import (
    HANGUP,
    REGULAR_REASONS,
    WebSocketSession,
    close_of,
    close_of_call,
    refuse,
)

_log = logging.getLogger("parley.gateway")
BUSY = f'{XML}<Response><Reject reason="busy"/></Response>'
"""TwiML that rejects a call."""
NONCE = "nonce"
"""The ``<Parameter>`` that admits one stream."""
AGENT = "agent"
"""The ``<Parameter>`` that names the agent of a call."""
RESUME = "resume"
"""The ``<Parameter>`` of a call that goes on."""
PIECE_MS = 100
"""Audio between two marks; at most this much is repeated when the agent resumes after a pause."""
MAX_PIECES = 600
"""A minute; the agent is never so far ahead. The oldest are dropped if a peer returns no marks."""
_ASKED_WITHIN_S = 10.0
_SAVED_MS = 500
"""At most so much of an answer is repeated at another gateway."""
_MOST_STREAMS = 20
"""Streams of one call: no failure may connect a caller for ever."""
_ULAW = AudioFormat("ulaw", messages.SAMPLE_RATE)


def connect_to(stream_url: str, ended_url: str, parameters: Mapping[str, str]) -> str:
    """TwiML that connects a call with a bidirectional stream."""
    given = "".join(
        f"<Parameter name={quoteattr(name)} value={quoteattr(value)}/>" for name, value in parameters.items()
    )
    stream = f"<Stream url={quoteattr(stream_url)}>{given}</Stream>"
    return f"{XML}<Response><Connect action={quoteattr(ended_url)}>{stream}</Connect></Response>"


@dataclass(frozen=True, slots=True)
class _Piece:
    response_id: str
    end_ms: int
    """Its end in the response's audio."""
    payload: str


class TwilioPlayback:
    """Sends the agent's audio to Twilio; ``report`` gets the played milliseconds of a response by marks."""

    def __init__(
        self, stream_sid: str, send: Callable[[dict[str, Any]], None], report: Callable[[str, int], None]
    ) -> None:
        self._stream_sid = stream_sid
        self._send = send
        self._report = report
        self._encoders: dict[int, Encoder] = {}
        self._unplayed: OrderedDict[str, _Piece] = OrderedDict()
        self._marks = 0
        self._paused = False
        self.silent = asyncio.Event()
        """Set while all audio was played."""
        self.silent.set()

    def play(self, audio: AgentAudio) -> None:
        """Send audio; while paused, only queue it."""
        coded = self._encoder(audio.sample_rate).encode(audio.samples)
        step = messages.SAMPLE_RATE * PIECE_MS // 1000
        for at in range(0, len(coded), step):
            part = coded[at : at + step]
            end_ms = audio.offset_ms + round(1000 * (at + len(part)) / messages.SAMPLE_RATE)
            self._queue(_Piece(audio.response_id, end_ms, base64.b64encode(part).decode()))

    def on_mark(self, name: str) -> None:
        """Handle a returned mark; those of cleared pieces are ignored."""
        if name not in self._unplayed:
            return
        # Marks return in order: earlier audio was played too.
        while True:
            first, piece = self._unplayed.popitem(last=False)
            if first == name:
                break
        self._report(piece.response_id, piece.end_ms)
        self._update_silent()

    def pause(self) -> None:
        """Stop playback at once and keep what was not played."""
        self._paused = True
        self._send(messages.clear(self._stream_sid))
        self._rename()

    def resume(self) -> None:
        """Continue after the last mark."""
        if not self._paused:
            return
        self._paused = False
        self._rename()
        for name, piece in self._unplayed.items():
            self._send_piece(name, piece)

    def drop(self, response_id: str) -> None:
        """Discard the rest of a response."""
        if not self._paused:
            self._send(messages.clear(self._stream_sid))
        others = [piece for piece in self._unplayed.values() if piece.response_id != response_id]
        self._unplayed.clear()
        self._paused = False
        for encoder in self._encoders.values():
            encoder.reset()
        for piece in others:
            self._queue(piece)
        self._update_silent()

    def _encoder(self, rate: int) -> Encoder:
        if rate not in self._encoders:
            self._encoders[rate] = Encoder(_ULAW, rate)
        return self._encoders[rate]

    def _queue(self, piece: _Piece) -> None:
        name = self._new_name()
        self._unplayed[name] = piece
        if len(self._unplayed) > MAX_PIECES:
            self._unplayed.popitem(last=False)
        self.silent.clear()
        if not self._paused:
            self._send_piece(name, piece)

    def _rename(self) -> None:
        """Give pieces new marks, so that the marks that ``clear`` returns are ignored."""
        pieces = list(self._unplayed.values())
        self._unplayed.clear()
        for piece in pieces:
            self._unplayed[self._new_name()] = piece

    def _new_name(self) -> str:
        self._marks += 1
        return str(self._marks)

    def _send_piece(self, name: str, piece: _Piece) -> None:
        self._send(messages.media(self._stream_sid, piece.payload))
        self._send(messages.mark(self._stream_sid, name))

    def _update_silent(self) -> None:
        if not self._unplayed:
            self.silent.set()


async def can_go_on(gateway: Gateway, signatures: TwilioSignatures, call_sid: str) -> bool:
    """Whether a call whose stream has ended goes on with another one."""
    epoch, is_kept = await gateway.kept.look(signatures.call_token(call_sid))
    return is_kept and epoch < _MOST_STREAMS


def _resume_from(claim: SessionClaim) -> protocol.Start:
    """How the agent goes on: Twilio has dropped what it had not played."""
    progress = claim.record.progress
    if progress is not None:
        progress = msgspec.structs.replace(
            progress,
            audio_ms=progress.played_ms,
            words=[word for word in progress.words if word[0] < progress.played_ms],
            done=progress.done and progress.played_ms >= progress.audio_ms,
        )
    return claim.make_start(SessionResume(token=claim.token, progress=progress))


async def serve_stream(
    websocket: WebSocket,
    gateway: Gateway,
    settings: TwilioSettings,
    signatures: TwilioSignatures,
    transfers: Transfers,
) -> None:
    """Serve one call, from Twilio's request to its close, or until Twilio has asked whom to dial."""
    try:
        principal = await gateway.guard.admit(
            websocket, "agent", signature=lambda: signatures.check_socket(websocket)
        )
    except ParleyError as error:
        await refuse(websocket, error, gateway)
        return
    await websocket.accept()
    session = _CallStream(websocket, gateway, settings, signatures, transfers)
    # The process does not end before Twilio has asked whom to dial.
    with gateway.calls.attend(), session.handing_over:
        try:
            start = await session.read_start()
            if start is None:
                return
            if not settings.own_twiml:
                nonce = start.start.custom_parameters.get(NONCE, "")
                await gateway.guard.use_once(*signatures.check_nonce(nonce))
            token, claim = signatures.call_token(start.start.call_sid), None
            if RESUME in start.start.custom_parameters:
                claim = await gateway.kept.claim(token, principal, is_translated=True)
            # Twilio's call may have had another conversation, before a transfer that nobody answered.
            before, _ = (0, False) if claim else await gateway.kept.look(token)
            options = _resume_from(claim) if claim else _options(settings, start)
            async with gateway.calls.open(
                options, principal=principal, api="twilio", shows_checkpoints=True
            ) as call:
                audit("telephone_call", principal, call=call.id, call_sid=start.start.call_sid)
                kept = gateway.kept.keep(
                    call,
                    lambda _: None,
                    session_id=token,
                    owner=principal,
                    claim=claim,
                    epoch=before + 1,
                    api_state=lambda: b"{}",
                )
                session.connect(call, start, kept)
                await session.run_call()
            await session.hand_over()
        except ParleyError as error:
            gateway.metrics.refused.labels(error.code).inc()
            # Through the writer, because the connection may be lost.
            session.writer.close(*close_of(error))
            await session.writer.run()


def _checked(message: messages.StartMessage, settings: TwilioSettings) -> messages.StartMessage:
    if settings.account and message.start.account_sid != settings.account:
        raise ForbiddenError("calls of this account are not accepted")
    messages.check_format(message.start.media_format)
    return message


def _options(settings: TwilioSettings, start: messages.StartMessage) -> protocol.Start:
    """The agent's options: the settings, and the ``<Parameter>`` elements of the operator's TwiML."""
    given = start.start.custom_parameters
    agent = given.get(AGENT, "")
    if agent:
        settings = TwilioSettings()  # the settings describe the server's own agent
    return protocol.Start(
        agent=agent,
        system_prompt=given.get("system_prompt", settings.system_prompt),
        greeting=given.get("greeting", settings.greeting),
        voice=given.get("voice", settings.voice),
        language=given.get("language", settings.language),
        output_sample_rate=messages.SAMPLE_RATE,
        ending=settings.ending,
    )


class _CallStream(WebSocketSession):
    """Forwards audio and keys in both directions."""

    def __init__(
        self,
        websocket: WebSocket,
        gateway: Gateway,
        settings: TwilioSettings,
        signatures: TwilioSignatures,
        transfers: Transfers,
    ) -> None:
        super().__init__(websocket, gateway, drains=True)
        self._settings = settings
        self._signatures = signatures
        self._transfers = transfers
        self._taken: asyncio.Event | None = None
        self.handing_over = ExitStack()
        """Holds a transfer until Twilio has asked for it; owned by the caller."""
        self._call: Call | None = None
        self._kept: KeptSession | None = None
        self._saved_ms = -_SAVED_MS
        """How much of a response was played when that was last saved."""
        self._is_over = asyncio.Event()
        """Set where the call is over, and not only this stream."""
        self._is_ended = asyncio.Event()
        """Set when the store of the sessions knows it."""
        self._decoder = AudioStreamDecoder(AudioFormat("ulaw", messages.SAMPLE_RATE))

    async def read_start(self) -> messages.StartMessage | None:
        """Wait for the ``start`` message, or raise SessionExpiredError; None: the stream ended before."""
        try:
            async with asyncio.timeout(self._settings.start_s):
                async for raw in self.messages:
                    message = messages.read_message(raw)
                    if isinstance(message, messages.StartMessage):
                        return _checked(message, self._settings)
                    if message is not None and not isinstance(message, messages.ConnectedMessage):
                        raise InvalidMessageError("a stream begins with connected and start")
        except TimeoutError as error:
            raise SessionExpiredError(f"no start within {self._settings.start_s:g} s") from error
        return None

    def connect(self, call: Call, start: messages.StartMessage, kept: KeptSession | None) -> None:
        """Connect the stream with the agent; before :meth:`run_call`."""
        self._call = call
        self._kept = kept
        self._call_sid = start.start.call_sid
        self._playback = TwilioPlayback(start.stream_sid, self.writer.send_json, self._report)

    async def run_call(self) -> None:
        """Run until the call is over, or this stream of it."""
        try:
            await self.run()
        finally:
            if self._kept is not None:
                await self._kept.finish(is_over=self._is_over.is_set())

    def beside(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """See :class:`WebSocketSession`."""
        return () if self._kept is None else (self._keep(self._kept),)

    async def _keep(self, kept: KeptSession) -> None:
        async with first_to_end(kept.run(), self._is_over.wait()) as (keeping, _):
            if keeping.done():
                await keeping
        # Before the stream is closed: Twilio asks at once whether the call goes on.
        await kept.finish(is_over=True)
        self._is_ended.set()
        await asyncio.get_running_loop().create_future()

    async def on_message(self, message: str | bytes) -> None:
        """See :class:`WebSocketSession`."""
        # After the end of the call the rest of its audio is played, and marks still come.
        with suppress(CallEndedError, CallLostError):
            await self._handle(messages.read_message(message))

    async def _handle(self, message: messages.FromTwilio | None) -> None:
        match message:
            case messages.MediaMessage(media=media) if media.track == "inbound":
                if len(media.payload) > messages.MAX_PAYLOAD_BYTES:
                    raise InvalidAudioError(f"{len(media.payload)} bytes of audio at once")
                await self._agent.send_audio(self._decoder.decode(media.payload))
            case messages.MarkMessage(mark=mark):
                self._playback.on_mark(mark.name)
            case messages.DtmfMessage(dtmf=key):
                self._send_key(key.digit)
            case messages.StopMessage():
                self._is_over.set()
                self.writer.close(*HANGUP)
            case messages.StartMessage():
                raise InvalidMessageError("start was sent already")

    @property
    def _agent(self) -> Call:
        assert self._call is not None
        return self._call

    def _send_key(self, digit: str) -> None:
        try:
            self._agent.send_dtmf(digit)
        except (InvalidMessageError, OverloadedError) as error:
            # Twilio has no error messages, and a lost key need not end the call.
            _log.warning("call %s: a DTMF key is lost: %s", self._agent.id, error.code)

    async def send_events(self) -> None:
        """Send the agent's audio until the agent ends the call and the rest was played."""
        async for event in self._agent:
            if isinstance(event, protocol.Checkpoint):
                if self._kept is not None:
                    await self._kept.on_checkpoint()
            else:
                self._on_event(event)
        closed = self._agent.closed
        if closed is None or self.gateway.calls.going_away.is_set():
            return
        await is_set_within(self._playback.silent, self._settings.farewell_s)  # marks may be missing
        if closed.transfer is not None:
            self._offer(closed.transfer)
        if self._kept is not None and closed.reason in REGULAR_REASONS:
            self._is_over.set()
            await self._is_ended.wait()
        self.writer.close(*close_of_call(closed.reason))

    def _offer(self, transfer: protocol.Transfer) -> None:
        """Let Twilio dial when the stream is closed."""
        if not transfer.to:
            _log.warning("call %s ends: the target %s has no number", self._agent.id, transfer.name)
            return
        twiml = dial(transfer, self._signatures)
        self._taken = self.handing_over.enter_context(self._transfers.offer(self._call_sid, twiml))

    async def hand_over(self) -> None:
        """Wait until Twilio has asked whom to dial, if the call is transferred."""
        if self._taken is not None and not await is_set_within(self._taken, _ASKED_WITHIN_S):
            _log.warning("call %s: Twilio has not asked for its transfer", self._agent.id)

    def _on_event(self, event: CallEvent) -> None:
        match event:
            case AgentAudio():
                self._playback.play(event)
            case protocol.Paused():
                self._playback.pause()
            case protocol.Resumed():
                self._playback.resume()
            case protocol.Interrupted(response_id=response_id):
                self._playback.drop(response_id)

    def _report(self, response_id: str, played_ms: int) -> None:
        # Not needed after the call; with a full queue a later mark replaces it.
        with suppress(CallEndedError, CallLostError, OverloadedError):
            self._agent.report_playback(response_id, played_ms)
        if self._kept is not None and not 0 <= played_ms - self._saved_ms < _SAVED_MS:
            self._saved_ms = played_ms
            self._kept.on_change()
