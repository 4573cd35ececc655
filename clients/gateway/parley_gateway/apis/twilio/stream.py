"""One telephone call: Twilio's Media Stream on one side, the agent on the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.websockets import WebSocket

from parley import protocol
from parley.errors import (
    InvalidAudioError,
    InvalidMessageError,
    OverloadedError,
    ParleyError,
)
from parley_client.call import Call
from parley_client.errors import CallEndedError, CallLostError
from parley_client.events import AgentAudio, CallEvent
from parley_gateway.apis.twilio.messages import (
    MAX_PAYLOAD_BYTES,
    SAMPLE_RATE,
    ConnectedMessage,
    DtmfMessage,
    FromTwilio,
    MarkMessage,
    MediaMessage,
    StartMessage,
    StopMessage,
    check_format,
    read_message,
)
from parley_gateway.apis.twilio.playback import Playback
from parley_gateway.apis.twilio.settings import TwilioSettings
from parley_gateway.apis.twilio.signature import TwilioSignatures
from parley_gateway.apis.twilio.voice import NONCE
from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder
from parley_gateway.closing import close_of, close_of_call
from parley_gateway.errors import ForbiddenError, SessionExpiredError
from parley_gateway.gateway import Gateway
from parley_gateway.security.audit import audit
from parley_gateway.sockets import messages, refuse, run_socket
from parley_gateway.writer import SocketWriter

API = "twilio"
_log = logging.getLogger("parley.gateway")


async def serve_stream(
    websocket: WebSocket, gateway: Gateway, settings: TwilioSettings, signatures: TwilioSignatures
) -> None:
    """Carry one call, from Twilio's request to the goodbye."""
    try:
        principal = await gateway.guard.admit(
            websocket, "agent", signature=lambda: signatures.check_socket(websocket)
        )
    except ParleyError as error:
        await refuse(websocket, error, gateway)
        return
    await websocket.accept()
    received = _read(messages(websocket, gateway.guard.meter(principal), gateway))
    try:
        start = await _begin(received, settings)
        if start is None:
            return
        if not settings.own_twiml:
            nonce = start.start.custom_parameters.get(NONCE, "")
            await gateway.guard.use_once(*signatures.check_nonce(nonce))
        options = _options(settings, start)
        async with gateway.calls.open(options, principal=principal, api=API) as call:
            audit("telephone_call", principal, call=call.id, call_sid=start.start.call_sid)
            await _Stream(
                websocket=websocket,
                gateway=gateway,
                settings=settings,
                call=call,
                start=start,
                received=received,
            ).run()
    except ParleyError as error:
        gateway.metrics.refused.labels(error.code).inc()
        # Twilio may have gone meanwhile, with which a writer knows how to deal.
        writer = SocketWriter(websocket, gateway.settings.writer, gateway.metrics)
        writer.close(*close_of(error))
        await writer.run()


async def _read(received: AsyncIterator[str | bytes]) -> AsyncIterator[FromTwilio]:
    async for raw in received:
        message = read_message(raw)
        if message is not None:
            yield message


async def _begin(received: AsyncIterator[FromTwilio], settings: TwilioSettings) -> StartMessage | None:
    """Whose call it is; None: the stream ended before."""
    try:
        async with asyncio.timeout(settings.start_s):
            async for message in received:
                if isinstance(message, StartMessage):
                    return _checked(message, settings)
                if not isinstance(message, ConnectedMessage):
                    raise InvalidMessageError("a stream begins with connected and start")
    except TimeoutError as error:
        raise SessionExpiredError(f"no start within {settings.start_s:g} s") from error
    return None


def _checked(message: StartMessage, settings: TwilioSettings) -> StartMessage:
    if settings.account and message.start.account_sid != settings.account:
        raise ForbiddenError("calls of this account are not taken")
    check_format(message.start.media_format)
    return message


def _options(settings: TwilioSettings, start: StartMessage) -> protocol.Start:
    """How the agent is told: by the settings, and by the ``<Parameter>`` elements of the operator's TwiML."""
    given = start.start.custom_parameters
    return protocol.Start(
        system_prompt=given.get("system_prompt", settings.system_prompt),
        greeting=given.get("greeting", settings.greeting),
        voice=given.get("voice", settings.voice),
        language=given.get("language", settings.language),
        output_sample_rate=SAMPLE_RATE,
    )


class _Stream:
    """The two directions of an open call."""

    def __init__(
        self,
        *,
        websocket: WebSocket,
        gateway: Gateway,
        settings: TwilioSettings,
        call: Call,
        start: StartMessage,
        received: AsyncIterator[FromTwilio],
    ) -> None:
        self._gateway = gateway
        self._settings = settings
        self._call = call
        self._received = received
        self._writer = SocketWriter(websocket, gateway.settings.writer, gateway.metrics)
        self._decoder = AudioStreamDecoder(AudioFormat("ulaw", SAMPLE_RATE))
        self._playback = Playback(start.stream_sid, self._writer.send_json, self._report)

    async def run(self) -> None:
        """Until one side hangs up."""
        await run_socket(self._writer, self._gateway, self._hear(), self._speak())

    async def _hear(self) -> None:
        """From the caller to the agent, until the caller hangs up."""
        async for message in self._received:
            try:
                if not await self._take(message):
                    return
            except (CallEndedError, CallLostError):
                # The other direction tells how the call ended; the caller still hears the rest.
                continue

    async def _take(self, message: FromTwilio) -> bool:
        """Whether more may follow."""
        match message:
            case MediaMessage(media=media) if media.track == "inbound":
                if len(media.payload) > MAX_PAYLOAD_BYTES:
                    raise InvalidAudioError(f"{len(media.payload)} bytes of audio at once")
                await self._call.send_audio(self._decoder.decode(media.payload))
            case MarkMessage(mark=mark):
                self._playback.heard(mark.name)
            case DtmfMessage(dtmf=key):
                self._press(key.digit)
            case StopMessage():
                return False
            case StartMessage():
                raise InvalidMessageError("a stream starts once")
        return True

    def _press(self, digit: str) -> None:
        try:
            self._call.send_dtmf(digit)
        except (InvalidMessageError, OverloadedError) as error:
            # Twilio cannot be told, and nobody hangs up for a key that was not understood.
            _log.warning("call %s: a key is lost: %s", self._call.id, error.code)

    async def _speak(self) -> None:
        """From the agent to the caller, until the agent hangs up and the caller has heard the rest."""
        async for event in self._call:
            self._tell(event)
        closed = self._call.closed
        if closed is None or self._gateway.calls.going_away.is_set():
            return
        try:
            async with asyncio.timeout(self._settings.farewell_s):
                await self._playback.silent.wait()
        except TimeoutError:
            pass  # whoever does not say what was heard is not waited for
        self._writer.close(*close_of_call(closed.reason))

    def _tell(self, event: CallEvent) -> None:
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
        # After the call there is nobody to be told; of a full queue a later mark says more.
        with suppress(CallEndedError, CallLostError, OverloadedError):
            self._call.report_playback(response_id, played_ms)
