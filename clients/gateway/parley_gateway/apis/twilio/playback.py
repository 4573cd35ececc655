"""What the caller hears, and how much of it was heard.

Twilio plays what it is sent, one piece after the other, and returns a mark when it has come so far. So every
piece is followed by a mark; until that comes back, the piece is kept. The caller's first sound stops Twilio
at once (``clear``), and if it was no interruption, what was not heard is simply sent again.
"""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parley_client.events import AgentAudio
from parley_gateway.apis.twilio import messages
from parley_gateway.apis.twilio.messages import SAMPLE_RATE
from parley_gateway.audio.codecs import AudioFormat, Encoder

PIECE_MS = 100
"""Between two marks; at most so much is said twice when the agent goes on after a pause."""
MAX_PIECES = 600
"""A minute; the agent never is so far ahead. Of a peer that returns no marks, the oldest are given up."""
_ULAW = AudioFormat("ulaw", SAMPLE_RATE)


@dataclass(frozen=True, slots=True)
class _Piece:
    response_id: str
    end_ms: int
    """Where it ends in the response's audio."""
    payload: str


class Playback:
    """The agent's speech on its way to the caller's ear.

    Args:
        stream_sid: The stream.
        send: Takes messages to Twilio.
        report: Is told how much of a response was heard (milliseconds).
    """

    def __init__(
        self, stream_sid: str, send: Callable[[dict[str, Any]], None], report: Callable[[str, int], None]
    ) -> None:
        self._stream_sid = stream_sid
        self._send = send
        self._report = report
        self._encoders: dict[int, Encoder] = {}
        self._unheard: OrderedDict[str, _Piece] = OrderedDict()
        self._marks = 0
        self._paused = False
        self.silent = asyncio.Event()
        """Everything was heard."""
        self.silent.set()

    def play(self, audio: AgentAudio) -> None:
        """Send a piece of the agent's speech, or keep it while the agent is paused."""
        coded = self._encoder(audio.sample_rate).encode(audio.samples)
        step = SAMPLE_RATE * PIECE_MS // 1000
        for at in range(0, len(coded), step):
            part = coded[at : at + step]
            end_ms = audio.offset_ms + round(1000 * (at + len(part)) / SAMPLE_RATE)
            self._queue(_Piece(audio.response_id, end_ms, base64.b64encode(part).decode()))

    def heard(self, name: str) -> None:
        """A mark has come back. Those of pieces that were cleared mean nothing."""
        if name not in self._unheard:
            return
        # Marks return in their order: what was sent before was heard too.
        while True:
            first, piece = self._unheard.popitem(last=False)
            if first == name:
                break
        self._report(piece.response_id, piece.end_ms)
        self._note_silence()

    def pause(self) -> None:
        """Fall silent at once, and keep what was not heard."""
        self._paused = True
        self._send(messages.clear(self._stream_sid))
        self._rename()

    def resume(self) -> None:
        """Go on from the last mark that was heard."""
        if not self._paused:
            return
        self._paused = False
        self._rename()
        for name, piece in self._unheard.items():
            self._send_piece(name, piece)

    def drop(self, response_id: str) -> None:
        """Never play the rest of a response."""
        if not self._paused:
            self._send(messages.clear(self._stream_sid))
        kept = [piece for piece in self._unheard.values() if piece.response_id != response_id]
        self._unheard.clear()
        self._paused = False
        for encoder in self._encoders.values():
            encoder.reset()
        for piece in kept:
            self._queue(piece)
        self._note_silence()

    def _encoder(self, rate: int) -> Encoder:
        if rate not in self._encoders:
            self._encoders[rate] = Encoder(_ULAW, rate)
        return self._encoders[rate]

    def _queue(self, piece: _Piece) -> None:
        name = self._new_name()
        self._unheard[name] = piece
        if len(self._unheard) > MAX_PIECES:
            self._unheard.popitem(last=False)
        self.silent.clear()
        if not self._paused:
            self._send_piece(name, piece)

    def _rename(self) -> None:
        """Let marks that are on their way back from a clear mean nothing."""
        pieces = list(self._unheard.values())
        self._unheard.clear()
        for piece in pieces:
            self._unheard[self._new_name()] = piece

    def _new_name(self) -> str:
        self._marks += 1
        return str(self._marks)

    def _send_piece(self, name: str, piece: _Piece) -> None:
        self._send(messages.media(self._stream_sid, piece.payload))
        self._send(messages.mark(self._stream_sid, name))

    def _note_silence(self) -> None:
        if not self._unheard:
            self.silent.set()
