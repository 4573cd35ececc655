"""A transcription session: the translator between a client's events and a recogniser."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.websockets import WebSocket

from parley.errors import SessionIdleError
from parley_client.errors import CallEndedError
from parley_client.stages import Recognition
from parley_gateway.doors.realtime.beside import read_beside
from parley_gateway.doors.realtime.events import server_event
from parley_gateway.doors.realtime.transcriber import Transcriber
from parley_gateway.doors.realtime.transcription_config import TranscriptionConfig
from parley_gateway.doors.realtime.wishes import Wishes
from parley_gateway.errors import SessionExpiredError
from parley_gateway.gateway import Gateway
from parley_gateway.security.principal import Principal
from parley_gateway.sockets import messages, run_socket, until_going_away
from parley_gateway.stages import Place
from parley_gateway.writer import SocketWriter

_Wish = NDArray[np.int16] | None
"""Audio, or to write down what was sent."""


class TranscribingSession:
    """Runs a :class:`Transcriber` over one WebSocket.

    Args:
        gateway: The parts of the process.
        desk: Leads to the recogniser.
        writer: Sends to the client.
        given: Settings that the client's secret brings.
    """

    def __init__(self, gateway: Gateway, desk: Place, writer: SocketWriter, given: dict[str, Any]) -> None:
        self._gateway = gateway
        self._desk = desk
        self._settings = gateway.settings.realtime
        self._writer = writer
        self._config = TranscriptionConfig(given)
        self._transcriber = Transcriber(self._config, self, self._emit)
        self._wishes: Wishes[_Wish] = Wishes(self._settings.waiting)

    async def serve(self, websocket: WebSocket, principal: Principal) -> None:
        """Until one side ends it."""
        self._transcriber.begin()
        meter = self._gateway.guard.meter(principal)

        async def hear() -> None:
            async for message in messages(websocket, meter, self._gateway):
                await self._transcriber.receive(message)
                await self._wishes.room()

        await run_socket(
            self._writer,
            self._gateway,
            hear(),
            self._speak(),
            until_going_away(self._gateway),
            on_error=self._transcriber.refuse,
        )

    # --- the way to the recogniser ----------------------------------------------------------

    def hear(self, samples: NDArray[np.int16]) -> None:
        """Audio: mono, 16 kHz, int16 [n]."""
        if len(samples):
            self._wishes.put(samples, samples.nbytes)

    def finalize(self) -> None:
        """Write down what was sent."""
        self._wishes.put(None)

    # --- the session ------------------------------------------------------------------------

    async def _speak(self) -> None:
        try:
            async with asyncio.timeout(self._settings.session_s):
                await self._transcribe()
        except TimeoutError as error:
            limit_s = self._settings.session_s
            raise SessionExpiredError(f"a session lasts {limit_s:g} s at most; connect again") from error

    async def _transcribe(self) -> None:
        limit_s = self._settings.first_event_s
        try:
            async with asyncio.timeout(limit_s):
                await self._wishes.any()
        except TimeoutError as error:
            raise SessionIdleError(f"no audio came within {limit_s:g} s") from error
        with self._desk.lease() as server:
            async with Recognition(
                server, self._config.options(), model=self._gateway.settings.stages.recognizer
            ) as stream:
                await read_beside(self._read(stream), self._send(stream))

    async def _read(self, stream: Recognition) -> None:
        async for event in stream:
            self._transcriber.hear(event)

    async def _send(self, stream: Recognition) -> None:
        with suppress(CallEndedError):  # the stream's events tell how that came
            while True:
                wish = await self._wishes.take()
                if wish is None:
                    stream.finalize()
                else:
                    await stream.send_all(wish)

    def _emit(self, kind: str, /, **fields: Any) -> None:
        self._writer.send_json(server_event(kind, fields))
