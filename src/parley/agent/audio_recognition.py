"""Speech recognition of one conversation: the client's audio in, speech events out."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.agent.config import AgentConfig
from parley.agent.reconnection import HEALTHY_S, ReconnectBackoff
from parley.agent.speech_events import Contained, SpeechEventMapper, SpeechHandler
from parley.asr.messages import AsrOptions, AsrReply, TranscriptEvent
from parley.audio.buffer import AudioPiece
from parley.audio.pcm import samples_to_ms
from parley.checkpoint import Resume
from parley.engines.base import Recognizer
from parley.engines.recognizers import Mark, RecognizerFeed, retry_if_busy
from parley.errors import (
    AudioDroppedError,
    InferenceError,
    InvalidInputError,
    OverloadedError,
    ParleyError,
)
from parley.protocol import INPUT_SAMPLE_RATE
from parley.timeouts import best_effort, loop_time, with_timeout

_PER_MS = INPUT_SAMPLE_RATE // 1000
_REPORT_INTERVAL_S = 1.0
_MAX_MARKS = 16
_MAX_SWITCHES = 64
_MAX_POLL_S = 0.256
_REPLAY_MS = 15_000
"""Audio beyond the limit that a session may get at once when it goes on with another one."""
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _UtteranceEnd:
    on_reached: Callable[[int], None] | None
    on_finished: Callable[[int], None] | None


@dataclass(frozen=True)
class _Switch:
    """Where in the client's audio it begins to be ignored, or ends."""

    position: int
    """Samples."""
    muted: bool
    on_contained: Callable[[], None]


class AudioRecognition:
    """Keeps one recogniser stream open for a conversation.

    A stream that fails is replaced by a new one; audio waits in the buffer meanwhile, and times and utterance
    numbers continue. The new one is of the same model, and of another one where that fails again before its
    first final transcript. Otherwise a call changes its model only with its language.

    Args:
        make_recognizer: makes a recogniser for a stream of the given name, which begins with ``name``; takes
            the models that are asked first and last, too (empty: none).
        on_chunk: called with the seconds that a chunk took, and those of the networks among them.
        resume: of another session, whose positions and numbers of utterances go on.
    """

    def __init__(
        self,
        make_recognizer: Callable[[str, str, str], Recognizer],
        name: str,
        options: AsrOptions,
        handler: SpeechHandler,
        config: AgentConfig,
        *,
        on_chunk: Callable[[float, float], None] = lambda *_: None,
        resume: Resume | None = None,
    ) -> None:
        self._make_recognizer = make_recognizer
        self._name = name
        self._options = options
        self._new_options: AsrOptions | None = None
        self._handler = handler
        self._config = config
        self._on_chunk = on_chunk
        self._feed: RecognizerFeed[_UtteranceEnd] = RecognizerFeed(
            config.audio_buffer_ms * _PER_MS, max_poll_s=_MAX_POLL_S
        )
        before = Contained(0, 0)
        if resume is not None:
            before = Contained(resume.audio_ms, resume.state.utterances)
            self._feed.buffer.skip(resume.audio_ms * _PER_MS)
            # What the client has kept comes at once.
            self._feed.buffer.capacity += _REPLAY_MS * _PER_MS
        self._speech_events = SpeechEventMapper(handler, before)
        self._processed = self._feed.buffer.position
        self._replay_end = self._processed + _REPLAY_MS * _PER_MS
        self._at_rest = False
        self._recognizer: Recognizer | None = None
        self._answered_by = ""  # the model whose stream has answered last; empty: none yet
        self._streams = 0
        self.muted = self._muted_behind = resume is not None and resume.state.muted
        """Whether audio that comes now is ignored."""
        self._switches: deque[_Switch] = deque()  # behind what another session would go on from
        self._backoff = ReconnectBackoff(config.deadlines.asr_outage_s)
        self._failing = False  # since the last reply
        self._failures: Counter[str] = Counter()  # of streams, by model, since it has understood the user
        self._avoided = ""  # the last model that failed twice: asked where no other opens a stream
        self._taken = 0  # samples, by the stream that is open
        self._unavailable = False
        self._dropped = 0
        self._dropped_at = -_REPORT_INTERVAL_S

    # --- what the session calls -------------------------------------------------------------

    async def open(self) -> None:
        """Open a stream, at another model where the chosen one accepts the options and then fails.

        All models together have the time that one reply may take: a client waits not much longer.

        Raises:
            ParleyError: the recogniser refuses the options, or does not answer.
        """
        self._streams += 1
        first = "" if self._avoided == self._answered_by else self._answered_by
        self._recognizer = self._make_recognizer(f"{self._name}-{self._streams}", first, self._avoided)
        await self._with_timeout(self._open(self._recognizer))

    async def _open(self, recognizer: Recognizer) -> None:
        await recognizer.check(self._options)
        await recognizer.start(self._options)

    def push_audio(self, samples: NDArray[np.int16]) -> None:
        """Add a chunk of the client's audio; never waits."""
        now = loop_time()
        if self.muted:
            self._feed.buffer.skip(len(samples))
        else:
            self._dropped += self._feed.append(samples, now)
        self._speech_events.arrived(self._feed.buffer.position, now)
        if self._dropped and now - self._dropped_at >= _REPORT_INTERVAL_S:
            length_ms = samples_to_ms(self._dropped, INPUT_SAMPLE_RATE)
            self._dropped, self._dropped_at = 0, now
            self._handler.on_error(AudioDroppedError(f"{length_ms:.0f} ms of audio dropped"))

    @property
    def model(self) -> str:
        """Name of the recogniser; empty before :meth:`open`."""
        return "" if self._recognizer is None else self._recognizer.model

    @property
    def processed_ms(self) -> int:
        """The client's audio before this position was recognised, or left out."""
        position = self._feed.buffer.start if self._at_rest else self._processed
        return position // _PER_MS

    def contained(self, held_from_ms: int | None) -> Contained:
        """See :meth:`parley.agent.speech_events.SpeechEventMapper.contained`."""
        return self._speech_events.contained(self.processed_ms, held_from_ms)

    def muted_behind(self, contained_ms: int) -> bool:
        """Whether audio behind what :meth:`contained` has is ignored."""
        while self._switches and self._switches[0].position <= contained_ms * _PER_MS:
            switch = self._switches.popleft()
            self._muted_behind = switch.muted
            switch.on_contained()
        return self._muted_behind

    @property
    def idle(self) -> bool:
        """Whether no speech is under way, no transcript is due, and no end of an utterance waits."""
        return self._speech_events.idle and not self._feed.marks

    def arrival(self, at_ms: int) -> float | None:
        """When the client's audio before ``at_ms`` had arrived, in seconds; None: unknown."""
        return self._speech_events.arrival(at_ms)

    def switch(self, *, muted: bool, on_contained: Callable[[], None] | None = None) -> None:
        """Ignore audio from now on, or accept it again; audio that was sent before is still transcribed.

        Args:
            muted: whether to ignore it.
            on_contained: called by :meth:`muted_behind` when that has passed this change, and at once if
                nothing changes; None: :meth:`muted_behind` is never called.

        Raises:
            OverloadedError: too many changes at once, and nothing changes; or as :meth:`end_utterance`, and
                audio is ignored all the same.
        """
        if muted == self.muted or len(self._switches) >= _MAX_SWITCHES:
            if on_contained is not None:
                on_contained()
            if muted == self.muted:
                return
            raise OverloadedError(f"{_MAX_SWITCHES} messages that mute or unmute wait for the recogniser")
        self.muted = muted
        if on_contained is not None:
            self._switches.append(_Switch(self._feed.buffer.position, muted, on_contained))
        if muted:
            self.end_utterance()

    def begin_turn(self) -> None:
        """Later utterances are of another turn: the recogniser does not decode them with earlier ones."""
        if self._recognizer is not None:
            self._recognizer.begin_turn()

    def end_utterance(
        self,
        *,
        on_reached: Callable[[int], None] | None = None,
        on_finished: Callable[[int], None] | None = None,
    ) -> None:
        """End the utterance under way after the audio so far.

        Args:
            on_reached: called when all audio so far was processed; takes the number of the last utterance.
            on_finished: called after the utterance's final transcript, or when that is overdue.

        Raises:
            OverloadedError: too many earlier ends were not reached.
        """
        if self._feed.marks >= _MAX_MARKS:
            raise OverloadedError(f"{_MAX_MARKS} ends of turns are waiting for the recogniser")
        self._feed.mark(_UtteranceEnd(on_reached, on_finished))

    def change(self, options: AsrOptions) -> None:
        """Use other options from the next utterance on."""
        self._new_options = None if options == self._options else options
        self._feed.wake()

    async def run(self) -> None:
        """Recognise speech until cancelled.

        Raises:
            ParleyError: the recogniser has been unavailable for too long.
        """
        while True:
            work = self._feed.take()
            if work is None:
                if self._new_options is not None and self._speech_events.idle:
                    await self._restart(self._new_options)
                    continue
                if self._processed >= self._replay_end:
                    self._feed.buffer.capacity = self._config.audio_buffer_ms * _PER_MS
                self._at_rest = True
                try:
                    work = await self._feed.wait(awaits_final=self._speech_events.awaits_text)
                finally:
                    self._at_rest, self._processed = False, self._feed.buffer.start
            if work is None:
                continue
            if isinstance(work, Mark):
                await self._end_utterance(work.payload)
            else:
                await self._push(work)

    def _begin_stream(self) -> None:
        self._taken = 0
        self._speech_events.begin_stream()

    async def close(self) -> None:
        """End the stream; never raises."""
        if self._recognizer is not None:
            what = f"ending the audio stream of {self._name}"
            await best_effort(self._recognizer.close(), self._config.deadlines.close_s, what)

    # --- requests to the recogniser ---------------------------------------------------------

    async def _push(self, piece: AudioPiece) -> None:
        reply = None
        while reply is None:
            try:
                began = loop_time()
                reply = await self._request(lambda: self._opened().push(piece.samples))
                self._on_chunk(
                    loop_time() - began, (reply.vad_ms + reply.encoder_ms + reply.decoder_ms) / 1000
                )
            except InvalidInputError as error:  # the piece itself is at fault
                await self._reopen(error)
                return
            except ParleyError as error:
                # The stream that may have processed the piece is gone: the new one begins with it.
                await self._reopen(error)
        self._failing = self._unavailable = False
        self._answered_by = self.model
        if len(piece.samples):
            self._processed = piece.position + len(piece.samples)
            self._taken += len(piece.samples)
            self._speech_events.on_processed(piece)
            self._backoff.worked(len(piece.samples) / INPUT_SAMPLE_RATE)
            self._handler.on_audio_processed(piece)
        self._pass_on(reply)

    def _pass_on(self, reply: AsrReply) -> None:
        self._speech_events.pass_on(reply)
        understood = any(isinstance(event, TranscriptEvent) and event.is_final for event in reply.events)
        if understood and self._taken >= HEALTHY_S * INPUT_SAMPLE_RATE:
            del self._failures[self.model]
            if self._avoided == self.model:
                self._avoided = ""

    async def _end_utterance(self, end: _UtteranceEnd) -> None:
        if end.on_reached is not None:
            end.on_reached(self._speech_events.utterance)
        try:
            self._pass_on(await self._request(lambda: self._opened().flush()))
        except ParleyError as error:
            await self._reopen(error)
        # Late transcripts come before those of later audio.
        await self._feed.await_finals(
            lambda: self._speech_events.awaits_text, self._push, self._config.deadlines.asr_s
        )
        if end.on_finished is not None:
            end.on_finished(self._speech_events.utterance)

    async def _request(self, request: Callable[[], Awaitable[AsrReply]]) -> AsrReply:
        return await retry_if_busy(lambda: self._with_timeout(request()))

    def _opened(self) -> Recognizer:
        if self._recognizer is None:
            raise InferenceError("the recogniser's stream is not open")
        return self._recognizer

    async def _reopen(self, error: ParleyError) -> None:
        if not self._backoff.failed(loop_time()):
            raise error.at("asr")
        self._handler.on_error(error.at("asr"))
        self._handler.on_onset_cancelled()
        if not isinstance(error, InvalidInputError):
            self._failures[self.model] += 1
            if self._failures[self.model] > 1:
                self._avoided = self.model
        if self._failing:  # the replacement has not answered either
            self._report_unavailable()
        self._failing = True
        while True:
            await self.close()
            self._speech_events.lose_stream(self._feed.buffer.position)
            await asyncio.sleep(self._backoff.wait_s())
            try:
                await self.open()
            except ParleyError as failure:
                if not self._backoff.failed(loop_time()):
                    raise failure.at("asr") from None
                _log.warning(
                    "%s: recogniser not reopened: %s", self._name, failure.to_log(), extra=failure.log_extra()
                )
                self._report_unavailable()
            else:
                self._begin_stream()
                return

    async def _restart(self, options: AsrOptions) -> None:
        """Open a stream with other options, between two utterances; refused options are dropped."""
        self._new_options = None
        before, self._options = self._options, options
        if options.language != before.language:
            self._answered_by = ""  # a model of more languages may be the slower one
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
            self._begin_stream()

    def _report_unavailable(self) -> None:
        if not self._unavailable:
            self._unavailable = True
            self._handler.on_recognizer_unavailable()

    async def _with_timeout(self, call: Awaitable[T]) -> T:
        return await with_timeout(call, self._config.deadlines.asr_s, "the recogniser")
