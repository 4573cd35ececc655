"""The agent's ears: the client's audio in, speech events out."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.agent.config import AgentConfig
from parley.agent.speech_events import SpeechEventMapper, SpeechHandler
from parley.asr.messages import AsrOptions, AsrReply
from parley.audio.buffer import AudioBuffer, AudioPiece
from parley.audio.pcm import samples_to_ms
from parley.engines.base import Recognizer
from parley.errors import (
    AudioDroppedError,
    InferenceError,
    InvalidInputError,
    OverloadedError,
    ParleyError,
)
from parley.protocol import INPUT_SAMPLE_RATE
from parley.waiting import try_within, within

_PER_MS = INPUT_SAMPLE_RATE // 1000
# Voice activity is judged in windows of this many samples: nothing is gained by sending less.
_WINDOW = 512
_MAX_PUSH = 16 * _WINDOW
_REPORT_INTERVAL_S = 1.0
# A recogniser forgets a stream that it has not heard of for a minute, as while the client is muted.
_KEEP_OPEN_S = 20.0
# A final text that another model writes comes with the reply to any piece, also to an empty one. Without
# new audio it is asked for after this time, then after twice as long, and so on.
_ASK_AGAIN_S = 0.016
_MOST_DOUBLINGS = 4
_NOTHING = np.zeros(0, np.int16)
_MAX_ENDS = 16
_RETRIES = 3
_RETRY_S = 0.05
T = TypeVar("T")
_log = logging.getLogger(__name__)


def _ignore(utterance: int) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True)
class _End:
    """Somebody ends the utterance under way, and wants to know when."""

    at: int
    """Samples that the client had sent then."""
    before: Callable[[int], None]
    after: Callable[[int], None]


class RecognizerFeed:
    """Feeds one recogniser from a bounded buffer, one call at a time.

    What arrives while a call is under way goes into the next one. A recogniser that fails is
    replaced by a new one; times and utterance numbers go on as if nothing had happened.

    Args:
        make_recognizer: makes a recogniser for a stream of the given name.
        name: of the session; streams are named after it.
        options: of every stream.
        handler: is told what was heard.
        config: limits and deadlines.
    """

    def __init__(
        self,
        make_recognizer: Callable[[str], Recognizer],
        name: str,
        options: AsrOptions,
        handler: SpeechHandler,
        config: AgentConfig,
    ) -> None:
        self._make_recognizer = make_recognizer
        self._name = name
        self._options = options
        self._handler = handler
        self._config = config
        self._buffer = AudioBuffer(config.audio_buffer_ms * _PER_MS)
        self._speech_events = SpeechEventMapper(handler)
        self._wake = asyncio.Event()
        self._recognizer: Recognizer | None = None
        self._streams = 0
        self._muted = False
        self._ends: deque[_End] = deque()
        self._wanted: AsrOptions | None = None
        self._backoff = ReconnectBackoff(config.deadlines.asr_outage_s)
        self._asked = 0  # empty pieces since the last one with audio
        self._failing = False  # since the last piece that was heard
        self._deaf = False
        self._dropped = 0
        self._dropped_at = -_REPORT_INTERVAL_S

    # --- what the session calls -------------------------------------------------------------

    async def open(self) -> None:
        """Open the first stream, unless the recogniser does not have its options.

        Raises:
            ParleyError: the recogniser refuses it, or does not answer.
        """
        self._streams += 1
        self._recognizer = self._make_recognizer(f"{self._name}-{self._streams}")
        await self._within(self._recognizer.check(self._options))
        await self._within(self._recognizer.start(self._options))

    def hear(self, samples: NDArray[np.int16]) -> None:
        """Take a chunk of the client's audio; never waits."""
        now = _now()
        if self._muted:
            self._buffer.skip(len(samples))
        else:
            self._dropped += self._buffer.append(samples, now)
            self._wake.set()
        self._speech_events.arrived(self._buffer.position, now)
        if self._dropped and now - self._dropped_at >= _REPORT_INTERVAL_S:
            length = samples_to_ms(self._dropped, INPUT_SAMPLE_RATE)
            self._dropped, self._dropped_at = 0, now
            self._handler.on_error(AudioDroppedError(f"{length:.0f} ms of audio dropped"))

    def mute(self) -> None:
        """Ignore audio from now on; what was said before is still understood.

        Raises:
            OverloadedError: as :meth:`finish` does; audio is ignored all the same.
        """
        if not self._muted:
            self._muted = True
            self.finish()

    def unmute(self) -> None:
        """Listen again."""
        self._muted = False

    def turn_over(self) -> None:
        """What is heard from now on is not read together with what was said before."""
        if self._recognizer is not None:
            self._recognizer.turn_over()

    def finish(
        self, *, before: Callable[[int], None] = _ignore, after: Callable[[int], None] = _ignore
    ) -> None:
        """End the utterance under way when all audio so far was heard.

        Args:
            before: is called then; takes the number of the last utterance.
            after: is called when that is over and its final text was there, or has not come in time.

        Raises:
            OverloadedError: the recogniser has not got round to the ones before.
        """
        if len(self._ends) >= _MAX_ENDS:
            raise OverloadedError(f"{_MAX_ENDS} ends of turns are waiting for the recogniser")
        self._ends.append(_End(self._buffer.position, before, after))
        self._wake.set()

    def change(self, options: AsrOptions) -> None:
        """Listen with other options from the next utterance on."""
        self._wanted = None if options == self._options else options
        self._wake.set()

    async def run(self) -> None:
        """Hear until cancelled.

        Raises:
            ParleyError: the recogniser has been out of order for too long.
        """
        while True:
            if not await self._woken():
                self._asked += 1
                await self._push(AudioPiece(_NOTHING, self._buffer.position, _now()))
                continue
            self._wake.clear()
            self._asked = 0
            while piece := self._take():
                await self._push(piece)
            if self._ends:
                end = self._ends.popleft()
                end.before(self._speech_events.utterance)
                await self._finish_utterance()
                await self._await_texts()
                end.after(self._speech_events.utterance)
                self._wake.set()  # there may be more behind it
            if self._wanted is not None and self._speech_events.idle:
                wanted, self._wanted = self._wanted, None
                await self._listen_anew(wanted)

    def _take(self) -> AudioPiece | None:
        """What the recogniser is to hear next, not beyond an end that somebody waits for."""
        if not self._ends:
            return self._buffer.take(_MAX_PUSH, _WINDOW)
        left = self._ends[0].at - self._buffer.start
        return self._buffer.take(min(_MAX_PUSH, left)) if left > 0 else None

    async def _woken(self) -> bool:
        """Wait until there is something to do; False: the recogniser is to be asked for news, or kept."""
        try:
            async with asyncio.timeout(self._patience_s()):
                return await self._wake.wait()
        except TimeoutError:
            return False

    def _patience_s(self) -> float:
        if not self._speech_events.awaits_text:
            return _KEEP_OPEN_S
        return _ASK_AGAIN_S * (1 << min(self._asked, _MOST_DOUBLINGS))

    async def close(self) -> None:
        """End the stream; never raises."""
        if self._recognizer is not None:
            name = f"ending the audio stream of {self._name}"
            await try_within(self._recognizer.close(), self._config.deadlines.close_s, name)

    # --- one call ---------------------------------------------------------------------------

    async def _push(self, piece: AudioPiece) -> None:
        reply = None
        while reply is None:
            try:
                reply = await self._hear(piece)
            except InvalidInputError as error:  # the piece itself is at fault
                await self._reopen(error)
                return
            except ParleyError as error:
                # The stream that may have heard it is gone: the new one begins with it.
                await self._reopen(error)
        self._failing = self._deaf = False
        if len(piece.samples):
            self._speech_events.heard(piece)
            self._backoff.worked(len(piece.samples) / INPUT_SAMPLE_RATE)
            self._handler.on_audio_processed(piece)
        self._speech_events.pass_on(reply)

    async def _hear(self, piece: AudioPiece) -> AsrReply:
        return await self._patiently(lambda: self._opened().push(piece.samples))

    async def _patiently(self, ask: Callable[[], Awaitable[AsrReply]]) -> AsrReply:
        """Ask again if the recogniser was too busy to do anything."""
        wait = _RETRY_S
        for _ in range(_RETRIES - 1):
            try:
                return await self._within(ask())
            except OverloadedError:
                await asyncio.sleep(wait)
                wait *= 2
        return await self._within(ask())

    async def _finish_utterance(self) -> None:
        try:
            self._speech_events.pass_on(await self._patiently(lambda: self._opened().flush()))
        except ParleyError as error:
            await self._reopen(error)

    async def _await_texts(self) -> None:
        """Let the texts come that are late: what was said after them is reported behind them only."""
        overdue_at = _now() + self._config.deadlines.asr_s
        asked = 0
        while self._speech_events.awaits_text and _now() < overdue_at:
            await asyncio.sleep(_ASK_AGAIN_S * (1 << min(asked, _MOST_DOUBLINGS)))
            await self._push(AudioPiece(_NOTHING, self._buffer.position, _now()))
            asked += 1

    def _opened(self) -> Recognizer:
        if self._recognizer is None:
            raise InferenceError("the listener was not opened")
        return self._recognizer

    async def _reopen(self, error: ParleyError) -> None:
        """Replace a recogniser that has failed; audio waits in the buffer meanwhile."""
        if not self._backoff.failed(_now()):
            raise error
        self._handler.on_error(error)
        self._handler.on_onset_cancelled()
        if self._failing:  # the one that replaced the last one has not heard anything
            self._tell_deaf()
        self._failing = True
        while True:
            await self.close()
            self._speech_events.lose_stream(self._buffer.position)
            await asyncio.sleep(self._backoff.wait_s())
            try:
                await self.open()
            except ParleyError as failure:
                if not self._backoff.failed(_now()):
                    raise
                _log.warning("%s: recogniser not reopened: %s", self._name, failure.to_log())
                self._tell_deaf()
            else:
                self._speech_events.begin_stream()
                return

    async def _listen_anew(self, options: AsrOptions) -> None:
        """Go on with a new stream, between two utterances; options that are refused are not kept."""
        before, self._options = self._options, options
        await self.close()
        try:
            try:
                await self.open()
            except InvalidInputError as error:
                self._handler.on_error(error)
                self._options = before
                await self.open()
        except ParleyError as error:
            await self._reopen(error)
        else:
            self._speech_events.begin_stream()

    def _tell_deaf(self) -> None:
        if not self._deaf:
            self._deaf = True
            self._handler.on_recognizer_unavailable()

    async def _within(self, call: Awaitable[T]) -> T:
        return await within(call, self._config.deadlines.asr_s, "the recogniser")


def _now() -> float:
    return asyncio.get_running_loop().time()


_WAITS_S = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
_HEALTHY_S = 3.0


class ReconnectBackoff:
    """Begins with a failure, and ends when a replacement has worked for three seconds.

    A replacement that fails before that was none: without this, one that opens and then fails would be
    replaced for ever, as fast as it fails.

    Args:
        limit_s: after so many seconds there is no hope.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began: float | None = None
        self._attempts = 0
        self._worked_s = 0.0

    def failed(self, now: float) -> bool:
        """Something failed at ``now`` (seconds); whether it is worth another attempt."""
        if self._began is None:
            self._began, self._attempts = now, 0
        self._worked_s = 0.0
        return now - self._began <= self._limit_s

    def wait_s(self) -> float:
        """Seconds before the next attempt, which is the caller's: longer from one to the next."""
        self._attempts += 1
        return _WAITS_S[min(self._attempts, len(_WAITS_S)) - 1]

    def worked(self, seconds: float) -> None:
        """The replacement has done its work for so long."""
        if self._began is not None:
            self._worked_s += seconds
            if self._worked_s >= _HEALTHY_S:
                self._began = None
