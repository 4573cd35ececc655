"""Requests that share one network, and the thread that makes their audio."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parley.audio.pcm import Resampler
from parley.errors import (
    InvalidMessageError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
    UnsupportedSampleRateError,
)
from parley.logs import log_ids
from parley.runtime.admission import EarlyAborts
from parley.runtime.onnx import Stop, StoppedError
from parley.tts.clauses.network import ClauseNetwork, ClauseSound, pause_samples
from parley.tts.clauses.splitting import split_clauses
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.messages import SpeakRequest, SpeechChunk, WordMark
from parley.tts.normalization.normalizer import parts_of
from parley.tts.requests import SpeechSink, check_request, kept_free
from parley.tts.text import WordMarker, is_speakable

_CHUNK_S = 1.0
"""Longest audio of one chunk."""
_NOTHING = np.zeros(0, np.int16)

_SEEDS = 2**31
_LOWEST_RATE, _HIGHEST_RATE = 8_000, 48_000
_log = logging.getLogger(__name__)


class ClauseUtterance:
    """Makes the audio of a request, piece by piece, as one stream."""

    def __init__(self, request: SpeakRequest, network: ClauseNetwork) -> None:
        self._request = request
        self._network = network
        self._rate = request.sample_rate or network.sample_rate
        self._marker = WordMarker(request.text)
        self._unpronounced = deque(parts_of(request.text))
        self._offset = 0
        self._clauses: deque[Sequence[PronouncedWord]] = deque()
        self._cut = 0  # clauses
        self._sound: ClauseSound | None = None  # of the first of them
        self._resampler = Resampler(network.sample_rate, self._rate)
        self._made = 0  # samples at the network's rate
        self._sent = 0  # samples at the rate of the chunks
        self._due: list[WordMark] = []  # of samples that have not been sent
        self._under_way: WordMark | None = None

    @property
    def complete(self) -> bool:
        """Whether all of the text was spoken."""
        return not self._clauses and not self._unpronounced

    @property
    def made_s(self) -> float:
        """Length of the audio so far."""
        return self._made / self._network.sample_rate

    def make_piece(self, stop: Stop) -> Iterator[tuple[SpeechChunk, NDArray[np.int16]]]:
        """The audio that follows, in chunks; not to be called when it is complete.

        Raises:
            StoppedError: the request was stopped.
            InferenceError: the network failed, or its output is not speech.
        """
        while not self._clauses and self._unpronounced:
            self._pronounce(self._unpronounced.popleft())
        audio = self._make(self._clauses[0], stop) if self._clauses else _NOTHING
        self._made += len(audio)
        resampled = self._resampler.push(audio)
        if self.complete:
            if self._made:  # else there is no audio, and no word was spoken
                self._due += self._marker.remaining_marks()
            resampled = np.concatenate([resampled, self._resampler.finish()])
        yield from self._chunks(resampled)

    def _pronounce(self, text: str) -> None:
        words = self._network.pronounce(text, self._request.language) if is_speakable(text) else []
        placed = [
            dataclasses.replace(word, start=word.start + self._offset, end=word.end + self._offset)
            for word in words
        ]
        clauses = split_clauses(placed, self._network.limits, before=self._cut)
        self._clauses += clauses
        self._cut += len(clauses)
        self._offset += len(text)

    def _make(self, words: Sequence[PronouncedWord], stop: Stop) -> NDArray[np.int16]:
        """The next samples of a clause, with the pause after it."""
        rate = self._network.sample_rate
        if self._sound is None:
            self._sound = self._network.speak(words, self._request, stop)
            for word, begins in zip(words, self._sound.begins, strict=True):
                at_sample = int((self._made + begins) * self._rate / rate)
                self._due += self._marker.marks_at(word.start, at_sample)
        audio = self._sound.make(stop)
        if not self._sound.complete:
            return audio
        self._sound = None
        self._clauses.popleft()
        return np.concatenate([audio, np.zeros(pause_samples(words[-1].after, rate), np.int16)])

    def _chunks(self, audio: NDArray[np.int16]) -> Iterator[tuple[SpeechChunk, NDArray[np.int16]]]:
        size = int(_CHUNK_S * self._rate)
        pieces = [audio[begin : begin + size] for begin in range(0, len(audio), size)] or [_NOTHING]
        for piece in pieces:
            end = self._sent + len(piece)
            is_last = self.complete and piece is pieces[-1]
            begun = [mark for mark in self._due if is_last or mark.at_sample < end]
            if not (len(piece) or begun):
                continue
            del self._due[: len(begun)]
            start_char, end_char = self._spoken_span(begun)
            chunk = SpeechChunk(
                sample_rate=self._rate,
                offset=self._sent,
                words=begun,
                start_char=start_char,
                end_char=end_char,
            )
            self._sent = end
            yield chunk, piece

    def _spoken_span(self, begun: list[WordMark]) -> tuple[int, int]:
        """The text that a piece speaks a part of: its words, after the one that began before it."""
        marks = [self._under_way, *begun] if self._under_way else begun
        if not marks:
            return 0, 0
        self._under_way = marks[-1]
        first = marks[1] if len(marks) > 1 and marks[1].at_sample <= self._sent else marks[0]
        return first.start_char, marks[-1].end_char


@dataclass(eq=False)
class _Job:
    request: SpeakRequest
    sink: SpeechSink
    utterance: ClauseUtterance
    due: float
    """When the audio that was sent has been played (monotonic clock)."""
    stop: Stop = field(default_factory=Stop)
    begun: bool = False


class ClauseSynthesizer:
    """Speaks requests concurrently, a piece at a time: first the one whose audio runs out first.

    Requests of calls are before those of the background.

    ``submit`` and ``abort`` must come from one thread. At most ``max_requests`` are open. The network
    belongs to the thread of this object from now on.
    """

    def __init__(self, network: ClauseNetwork, *, name: str, max_requests: int = 64) -> None:
        self._network = network
        self._max_requests = max_requests
        self._changed = threading.Condition()
        self._jobs: dict[str, _Job] = {}  # by id; guarded by the condition's lock
        self._running: _Job | None = None
        self._closed = False
        self._early_aborts = EarlyAborts()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, request: SpeakRequest, sink: SpeechSink) -> None:
        """Begin a request; everything that happens from now on goes to its sink."""
        try:
            self._admit(request, sink)
        except ParleyError as error:
            sink.fail(error)

    def abort(self, request_id: str) -> None:
        """Stop a request at once: while a piece is made, waiting, or before it has arrived."""
        with self._changed:
            job = self._jobs.get(request_id)
            is_waiting = job is not None and job is not self._running
            if is_waiting:
                del self._jobs[request_id]
        if job is None:
            self._early_aborts.add(request_id)
            return
        job.stop.request()
        if is_waiting:
            job.sink.finish()

    def close(self, timeout_s: float = 5.0) -> None:
        """Fail all requests and stop the thread."""
        with self._changed:
            self._closed = True
            jobs = tuple(self._jobs.values())
            self._changed.notify_all()
        for job in jobs:
            job.stop.request()
            job.sink.fail(ShuttingDownError("the model is being unloaded"))
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("the synthesis thread did not stop within %g s", timeout_s)

    def _admit(self, request: SpeakRequest, sink: SpeechSink) -> None:
        check_request(request)
        rate = request.sample_rate
        if rate is not None and not _LOWEST_RATE <= rate <= _HIGHEST_RATE:
            raise UnsupportedSampleRateError(f"{rate} Hz; possible are {_LOWEST_RATE} to {_HIGHEST_RATE}")
        if request.seed is not None and not 0 <= request.seed < _SEEDS:
            raise InvalidMessageError(f"seed {request.seed} is not between 0 and {_SEEDS - 1}")
        self._network.check(request.voice, request.language)
        if self._early_aborts.take(request.request_id):
            sink.finish()
            return
        job = _Job(request, sink, ClauseUtterance(request, self._network), time.monotonic())
        with self._changed:
            if self._closed:
                raise ShuttingDownError("the model is being unloaded")
            if request.request_id in self._jobs:
                raise InvalidMessageError(f"request id {request.request_id!r} is in use")
            if len(self._jobs) + kept_free(request, self._max_requests) >= self._max_requests:
                raise OverloadedError(f"{len(self._jobs)} requests are open already")
            self._jobs[request.request_id] = job
            self._changed.notify_all()

    # --- in the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._next()) is not None:
            with log_ids(request=job.request.request_id):
                try:
                    is_over = self._advance(job)
                except Exception:  # noqa: BLE001 - logged
                    # The one thread goes on: the other requests have nothing to do with this one.
                    _log.exception("speech request %s could not be ended", job.request.request_id)
                    is_over = True
            with self._changed:
                self._running = None
                if is_over:
                    del self._jobs[job.request.request_id]

    def _next(self) -> _Job | None:
        """The request whose audio runs out first, of a call if there is one."""
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            self._running = min(self._jobs.values(), key=lambda job: (job.request.background, job.due))
            return self._running

    def _advance(self, job: _Job) -> bool:
        """Make the next piece of a request and send it; returns whether the request is over."""
        made_s = job.utterance.made_s
        if not job.sink.wanted:
            job.stop.request()
        if not job.begun:
            job.begun = True
            job.sink.on_begun()
        try:
            for chunk, audio in job.utterance.make_piece(job.stop):
                if job.stop.requested or not job.sink.send(chunk, audio):
                    job.stop.request()
                    break
        except StoppedError:
            pass
        except ParleyError as error:
            job.sink.fail(error)
            return True
        except Exception as error:  # noqa: BLE001 - answered and logged
            _log.exception("speech request %s failed", job.request.request_id)
            job.sink.fail(ParleyError(f"{type(error).__name__}: {error}"))
            return True
        if job.stop.requested or job.utterance.complete:
            job.sink.finish()
            return True
        # A late piece is played at once.
        job.due = max(job.due, time.monotonic()) + job.utterance.made_s - made_s
        return False
