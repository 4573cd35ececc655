"""A call with an agent that answers every stretch of loud sound, in virtual time."""

from __future__ import annotations

import asyncio

import numpy as np

from parley import protocol
from parley_client.events import AgentAudio

CHUNK_S = 0.032
SILENCE_S = 0.2
PIECE_MS = 100
RATE = 16_000


class FakeLine:
    """Looks like :class:`parley_client.call.Call` to a caller.

    Args:
        answer: said to everything; each word takes 100 ms.
        deaf: nothing is ever heard.
        pauses: what is said over the agent halts it for 300 ms and stops nothing.
        hangs_up_after_s: the call ends then.
    """

    def __init__(
        self, answer: str, *, deaf: bool = False, pauses: bool = False, hangs_up_after_s: float | None = None
    ) -> None:
        self.answer = answer
        self.deaf = deaf
        self.pauses = pauses
        self.hangs_up_after_s = hangs_up_after_s
        self.closed: protocol.Closed | None = None
        self.sent: list[np.ndarray] = []
        self.marks: list[tuple[str, float]] = []
        self.typed: list[str] = []
        self._events: asyncio.Queue[object] = asyncio.Queue()
        self._loud = False
        self._last_loud = 0.0
        self._turn = 0
        self._left: list[str] = []
        self._sent_ms = 0
        self._next_s = 0.0
        self._halted_until = 0.0

    def __aiter__(self):
        return self

    async def __anext__(self):
        event = await self._events.get()
        if isinstance(event, protocol.Closed):
            raise StopAsyncIteration
        return event

    async def send_audio(self, chunk: np.ndarray) -> None:
        self.sent.append(chunk)
        now = len(self.sent) * CHUNK_S
        if self.hangs_up_after_s is not None and now >= self.hangs_up_after_s:
            self.closed = protocol.Closed(reason="shutdown")
            self._events.put_nowait(self.closed)
        self._hear(float(np.abs(chunk).max()) > 1_000 and not self.deaf, now)
        self._speak(now)

    def send_text(self, text: str) -> None:
        self.typed.append(text)
        self._begin(len(self.sent) * CHUNK_S)

    def report_playback(self, response_id: str, played_ms: float) -> None:
        self.marks.append((response_id, played_ms))

    def _tell(self, event: object) -> None:
        self._events.put_nowait(event)

    def _hear(self, loud: bool, now: float) -> None:
        if loud and not self._loud:
            self._tell(protocol.SpeechStarted(at_ms=round(1000 * (now - CHUNK_S))))
            self._cut_in(now)
        if loud:
            self._loud, self._last_loud = True, now
        elif self._loud and now - self._last_loud >= SILENCE_S:
            self._loud = False
            stopped = round(1000 * self._last_loud)
            self._tell(protocol.SpeechStopped(at_ms=stopped, detected_at_ms=round(1000 * now)))
            self._tell(protocol.Transcript(utterance=1, text="beep", is_final=True, confidence=1.0))
            if not self._left:
                self._tell(
                    protocol.TurnDecision(utterance=1, decision="commit", reason="text_finished", text="beep")
                )
                self._begin(now)

    def _cut_in(self, now: float) -> None:
        if not self._left:
            return
        response = f"r{self._turn}"
        if self.pauses:
            self._tell(protocol.Paused(turn=self._turn, response_id=response, at_ms=round(1000 * now)))
            self._halted_until = now + 0.3
            return
        self._tell(protocol.Interrupted(turn=self._turn, response_id=response, played_ms=0, spoken_text=""))
        self._finish()

    def _begin(self, now: float) -> None:
        self._turn += 1
        self._left = self.answer.split()
        self._sent_ms, self._next_s = 0, now
        self._tell(protocol.AgentState(state="speaking"))
        self._tell(protocol.ResponseText(turn=self._turn, response_id=f"r{self._turn}", text=self.answer))

    def _speak(self, now: float) -> None:
        response = f"r{self._turn}"
        if self._halted_until:
            if now < self._halted_until:
                return
            self._halted_until, self._next_s = 0.0, now
            self._tell(protocol.Resumed(turn=self._turn, response_id=response, reason="noise"))
        while self._left and now >= self._next_s:
            samples = np.full(PIECE_MS * RATE // 1000, 500, np.int16)
            self._tell(AgentAudio(self._turn, response, self._sent_ms, RATE, samples, self._left.pop(0)))
            self._sent_ms += PIECE_MS
            self._next_s += PIECE_MS / 1000
            if not self._left:
                self._tell(
                    protocol.ResponseDone(turn=self._turn, response_id=response, audio_ms=self._sent_ms)
                )
                self._finish()

    def _finish(self) -> None:
        self._left = []
        self._tell(protocol.TurnMetrics(turn=self._turn))
        self._tell(protocol.AgentState(state="listening"))
