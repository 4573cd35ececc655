"""The final text of an utterance: the streaming model's own, or that of a model that hears all of it.

A call to such a model is under way while the streams go on, so that a long one delays no stream.
Whatever it does, a text comes: another model's, or in the end the streaming model's own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.words import transcript
from parley.asr.messages import (
    STREAM_ENDED,
    AsrEvent,
    AsrFallbackEvent,
    AsrOptions,
    TranscribeReply,
    TranscribeRequest,
    TranscriptEvent,
)
from parley.asr.segmenter.turn_audio import JoinedTurn, rest_of
from parley.asr.streaming.utterance import EarlyTranscript, StreamingUtterance
from parley.errors import (
    DeadlineExceededError,
    ParleyError,
    ShuttingDownError,
    UnsupportedLanguageError,
)
from parley.protocol import Alternative, Word

_log = logging.getLogger(__name__)


class Transcribers(Protocol):
    """Models that take whole recordings."""

    def submit(
        self, model: str, audio: NDArray[np.int16], request: TranscribeRequest
    ) -> Future[TranscribeReply]:
        """Begin to transcribe: i16 ``[n]``. A failure comes with the future, as a ``ParleyError``."""
        ...


@dataclass(frozen=True)
class FinalTranscriptPolicy:
    """Which model's final text counts."""

    own: str
    """Name of the streaming model."""
    finals: str = ""
    """Model that transcribes every utterance anew; empty: the streaming model's text is final."""
    fallback: str = ""
    """Model for the utterances that the streaming model fails at; empty: such a chunk is refused."""
    deadline_s: float = 2.0
    """After so long another model's text is not waited for any more."""
    rest_s: float = 10.0
    """A model that was late is left out for this time: each step with a new final text would wait for it."""
    refusal_s: float = 60.0
    """A model that does not understand a language is not asked for it during this time: it may be loaded
    again with more languages."""

    @property
    def keeps_audio(self) -> bool:
        """Whether another model may want to hear an utterance."""
        return bool(self.finals or self.fallback)

    @property
    def rescue(self) -> str:
        """The model that goes on for the streaming model; empty: there is none."""
        return self.finals or self.fallback


class FinalTranscriber:
    """Asks other models, as the policy says, and counts what was replaced."""

    def __init__(
        self,
        policy: FinalTranscriptPolicy,
        transcribers: Transcribers,
        count: Callable[[AsrFallbackEvent], None],
        clock: Callable[[], float],
    ) -> None:
        """Follow ``policy``."""
        self.policy = policy
        self.transcribers = transcribers
        self.clock = clock
        self._count = count
        self._resting: dict[str, float] = {}  # models of the policy, and until when
        # Models with languages that they did not understand, and until when they are not asked for them.
        self._refused: dict[tuple[str, str], float] = {}

    def replace(self, utterance: int, from_model: str, to_model: str, error: ParleyError) -> AsrFallbackEvent:
        """Note that a model was replaced."""
        _log.warning(
            "%s is replaced by %s: %s", from_model, to_model, error.to_log(), extra=error.log_extra()
        )
        event = AsrFallbackEvent(
            utterance=utterance, from_model=from_model, to_model=to_model, reason=error.code
        )
        self._count(event)
        return event

    def ask(
        self, model: str, utterance: StreamingUtterance, joined: JoinedTurn | None, options: AsrOptions
    ) -> Future[TranscribeReply]:
        """Begin to let a model hear an utterance, or what it is joined to."""
        audio = utterance.audio() if joined is None else joined.content
        request = TranscribeRequest(
            language=options.language,
            words=options.words or joined is not None,
            phrases=options.phrases,
            phrase_weight=options.phrase_weight,
            nbest=options.nbest,
            traceparent=options.traceparent,
        )
        return self.transcribers.submit(model, audio, request)

    def ask_early(
        self, utterance: StreamingUtterance, end: int, joined: JoinedTurn | None, options: AsrOptions
    ) -> None:
        """Let the model of final texts hear an utterance that seems to be over, if it has not begun yet.

        ``end``: sample of the stream where its speech ended. ``joined``: what the model hears in its place.
        """
        model = self.finals_for(options.language)
        if utterance.early is None and model and not self.rests(model):
            asked_at = self.clock()
            utterance.early = EarlyTranscript(
                model, self.ask(model, utterance, joined, options), joined, end, asked_at
            )

    def finals_for(self, language: str) -> str:
        """The model of final texts in a language; empty: the streaming model's own count."""
        finals = self.policy.finals
        return "" if self.clock() < self._refused.get((finals, language), 0.0) else finals

    def on_language_refused(self, model: str, language: str) -> bool:
        """Note that a model does not understand a language; returns whether that is new."""
        is_new = (model, language) not in self._refused
        self._refused[model, language] = self.clock() + self.policy.refusal_s
        return is_new

    def let_rest(self, model: str) -> None:
        """Note that a model was late."""
        self._resting[model] = self.clock() + self.policy.rest_s

    def rests(self, model: str) -> bool:
        """Whether a model is not asked, because it was late recently."""
        return self.clock() < self._resting.get(model, 0.0)


class FinalTranscript:
    """The pending final text of one utterance, with the events that come before it."""

    def __init__(
        self,
        final_transcriber: FinalTranscriber,
        utterance: StreamingUtterance,
        options: AsrOptions,
        joined: JoinedTurn | None = None,
    ) -> None:
        """Begin for an utterance that has ended but is perhaps not decoded to its end."""
        self._final_transcriber = final_transcriber
        self._utterance = utterance
        self._joined = joined
        self._options = options
        self._models: deque[str] = deque()
        self._model = ""
        self._call: Future[TranscribeReply] | None = None
        self.overdue_at = 0.0
        """When that call is given up (seconds of the transcriber's clock)."""
        self._own: list[Word] = []
        self._own_alternatives: list[Alternative] = []
        self._events: list[AsrEvent] = []
        self._done = False
        finals = final_transcriber.finals_for(options.language)
        if utterance.early is not None:
            # The call's own model: another stream may have been refused its language since.
            early = utterance.early
            self._joined = early.joined
            self._wait_for(early.model, early.call, early.asked_at)
        elif finals and not final_transcriber.rests(finals):
            # Asked before the streaming model comes to the end, so that both work at the same time.
            self._ask(finals)
        elif finals:
            self._models.append(finals)

    def set_own(self, own: list[Word], alternatives: list[Alternative], failed: ParleyError | None) -> None:
        """Take the streaming model's own result."""
        self._own = own
        self._own_alternatives = alternatives
        policy = self._final_transcriber.policy
        if failed is not None and policy.fallback and policy.fallback != policy.finals:
            self._models.append(policy.fallback)
        if self._call is None:
            self._next()

    @property
    def call(self) -> Future[TranscribeReply] | None:
        """The call that is waited for; None: the text is there."""
        return None if self._done else self._call

    def cancel(self) -> None:
        """Cancel the call."""
        if self._call is not None:
            self._call.cancel()

    def end_stream(self) -> None:
        """Take the streaming model's own text if no other is there yet: the stream has no later reply."""
        if self.poll() is None:
            self.cancel()
            event = AsrFallbackEvent(
                utterance=self._utterance.number,
                from_model=self._model,
                to_model=self._final_transcriber.policy.own,
                reason=STREAM_ENDED,
            )
            self._events.append(event)  # neither counted nor logged: no model has failed
            self._finish_with_own()

    def poll(self) -> list[AsrEvent] | None:
        """The text and the events before it; None: it is not there yet."""
        while not self._done:
            assert self._call is not None
            expected = False
            if self._call.done():
                error = self._take(self._call)
                if isinstance(error, UnsupportedLanguageError):
                    language = self._options.language
                    expected = not self._final_transcriber.on_language_refused(self._model, language)
            elif self._final_transcriber.clock() >= self.overdue_at:
                self._call.cancel()
                self._final_transcriber.let_rest(self._model)
                limit = self._final_transcriber.policy.deadline_s
                error = DeadlineExceededError(f"no final text within {limit:g} s")
            else:
                return None
            if error is not None:
                if not expected:
                    self._replace(self._model, error)
                self._next()
        return self._events

    def _replace(self, model: str, error: ParleyError) -> None:
        to_model = self._models[0] if self._models else self._final_transcriber.policy.own
        self._events.append(self._final_transcriber.replace(self._utterance.number, model, to_model, error))

    def _next(self) -> None:
        while self._models:
            model = self._models.popleft()
            if not self._final_transcriber.rests(model):
                self._ask(model)
                return
            self._replace(model, DeadlineExceededError("the model was late, and is not asked again yet"))
        self._finish_with_own()

    def _finish_with_own(self) -> None:
        self._finish(
            transcript(
                self._utterance.number,
                self._own,
                is_final=True,
                with_words=self._options.words,
                alternatives=self._own_alternatives,
            )
        )

    def _ask(self, model: str) -> None:
        call = self._final_transcriber.ask(model, self._utterance, self._joined, self._options)
        self._wait_for(model, call, self._final_transcriber.clock())

    def _wait_for(self, model: str, call: Future[TranscribeReply], asked_at: float) -> None:
        self._model, self._call = model, call
        self.overdue_at = asked_at + self._final_transcriber.policy.deadline_s

    def _take(self, call: Future[TranscribeReply]) -> ParleyError | None:
        """Read the answer of a call that is done; return its error."""
        if call.cancelled():
            return ShuttingDownError(f"the call to {self._model} was cut off")
        error = call.exception()
        if isinstance(error, ParleyError):
            return error
        if error is not None:
            _log.error("%s failed unexpectedly", self._model, exc_info=error)
            return ParleyError(str(error))
        self._finish(self._event(call.result()))
        return None

    def _event(self, reply: TranscribeReply) -> TranscriptEvent:
        if self._joined is not None:
            before, words = self._joined.split(reply.words)
            return transcript(
                self._utterance.number,
                words,
                is_final=True,
                with_words=self._options.words,
                alternatives=rest_of(reply.alternatives, before),
                first=self._joined.first,
                before=before,
            )
        later = self._utterance.start_ms
        return TranscriptEvent(
            utterance=self._utterance.number,
            text=reply.text,
            is_final=True,
            confidence=reply.confidence,
            stable_words=len(reply.text.split()),
            alternatives=reply.alternatives,
            words=[
                msgspec.structs.replace(word, start_ms=word.start_ms + later, end_ms=word.end_ms + later)
                for word in reply.words
            ],
        )

    def _finish(self, event: TranscriptEvent) -> None:
        self._events.append(event)
        self._done = True


def wait_for(texts: Iterable[FinalTranscript], patience_s: float, clock: Callable[[], float]) -> None:
    """Wait until the texts are there, or ``patience_s`` seconds have passed."""
    until = clock() + patience_s
    while True:
        pending = [text for text in texts if text.poll() is None]
        now = clock()
        if not pending or now >= until:
            return
        limit = min(until, *(text.overdue_at for text in pending)) - now
        wait([text.call for text in pending if text.call is not None], max(limit, 0.0))
