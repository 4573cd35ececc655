"""An utterance to a recogniser, in real time."""

from __future__ import annotations

import asyncio
import time

from harness.recordings import Recording
from harness.stats import spoken_words, word_errors

from parley_client.audio.microphone import PacedMicrophone, SpokenClip
from stages.protocols import RATE, EndpointError, Recognizer, SpeechStream
from stages.turns import CHUNK_MS, Patience, Turn, first_to_end, is_set_within, stop

_LEAD_S = 0.3
"""Of silence before an utterance, as on a telephone."""


async def recognize(endpoint: Recognizer, utterance: Recording, patience: Patience) -> Turn:
    """Speak an utterance in real time, and read its texts.

    Silence goes before and after it, as from a microphone that stays open, so the time to the final text
    includes the endpoint's own wait for the end of speech. An endpoint that does not stream gets the
    utterance alone, when its last sample has been spoken: the end of speech is given to it, without any wait.
    """
    hearing = _Hearing(utterance, patience, streams=endpoint.streams)
    limit_s = patience.turn_s + len(utterance.samples) / RATE
    failure = ""
    try:
        async with asyncio.timeout(limit_s), endpoint.open() as stream:
            await hearing.run(stream)
    except TimeoutError:
        failure = "timeout"
    except EndpointError as error:
        failure = str(error)
    return hearing.result(failure)


class _Hearing:
    """Speaks one utterance, and collects what is understood of it."""

    def __init__(self, utterance: Recording, patience: Patience, *, streams: bool) -> None:
        self._utterance = utterance
        self._patience = patience
        self._streams = streams
        self._finals: list[tuple[float, str]] = []
        self._first_s: float | None = None
        self._has_final = asyncio.Event()
        self._microphone: PacedMicrophone | None = None
        self._spoken = SpokenClip(utterance.samples)

    async def run(self, stream: SpeechStream) -> None:
        """Raises EndpointError: the endpoint failed."""
        self._microphone = microphone = PacedMicrophone(stream.send, chunk_ms=CHUNK_MS)
        reading = asyncio.create_task(self._read(stream))
        sending = asyncio.create_task(microphone.run())
        speaking = asyncio.create_task(self._speak(microphone))
        try:
            await first_to_end(speaking, sending, reading)
            if reading.done():
                raise EndpointError("ended early")
            await stop(sending)
            await stream.end()
            await reading
        finally:
            await stop(reading, sending, speaking)

    async def _speak(self, microphone: PacedMicrophone) -> None:
        """Speak; after the end of speech wait for the final texts."""
        if self._streams:
            await asyncio.sleep(_LEAD_S)
        self._spoken = microphone.speak(self._utterance.samples)
        await self._spoken.ended.wait()
        if not self._streams:
            return
        self._has_final.clear()
        limit_s = self._patience.tail_s
        while await is_set_within(self._has_final, limit_s):
            self._has_final.clear()
            limit_s = self._patience.settle_s

    async def _read(self, stream: SpeechStream) -> None:
        async for text in stream:
            now = time.perf_counter()
            if not text.text.strip():
                continue
            if self._first_s is None:
                self._first_s = now
            if text.is_final:
                self._finals.append((now, text.text.strip()))
                self._has_final.set()

    def result(self, failure: str) -> Turn:
        """What was measured; where it failed every word counts as an error."""
        late_ms = 1000 * self._microphone.worst_late_s if self._microphone else None
        said = spoken_words(self._utterance.text)
        if failure or not self._finals:
            return Turn(failure=failure or "no text", words=(len(said), len(said)), late_ms=late_ms)
        text = " ".join(text for _, text in self._finals)
        figures = {"final_ms": 1000 * (self._finals[-1][0] - self._spoken.ended_s)}
        if self._streams and self._first_s is not None:
            figures["first_partial_ms"] = 1000 * (self._first_s - self._spoken.began_s)
        errors = word_errors(said, spoken_words(text))
        return Turn(figures, words=(errors, len(said)), late_ms=late_ms, text=text)
