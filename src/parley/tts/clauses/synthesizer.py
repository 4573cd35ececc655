"""The speech of requests that share one network for clauses."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from parley.audio.pcm import Resampler
from parley.errors import InvalidMessageError, UnsupportedSampleRateError
from parley.runtime.onnx import Stop, StoppedError
from parley.tts.clauses.network import ClauseNetwork, ClauseSound, pause_samples
from parley.tts.clauses.splitting import split_clauses
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.messages import SpeakRequest, SpeechChunk, WordMark
from parley.tts.normalization.normalizer import parts_of
from parley.tts.queue import Send, SpeechQueue
from parley.tts.text import WordMarker, is_speakable

_CHUNK_S = 1.0
"""Longest audio of one chunk."""
_NOTHING = np.zeros(0, np.int16)

_SEEDS = 2**31
_LOWEST_RATE, _HIGHEST_RATE = 8_000, 48_000


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
        self._stop = Stop()

    @property
    def complete(self) -> bool:
        """Whether all of the text was spoken."""
        return not self._clauses and not self._unpronounced

    @property
    def made_s(self) -> float:
        """Length of the audio so far."""
        return self._made / self._network.sample_rate

    @property
    def stopped(self) -> bool:
        """See :class:`parley.tts.queue.PiecewiseSpeech`."""
        return self._stop.requested

    def stop(self) -> None:
        """See :class:`parley.tts.queue.PiecewiseSpeech`."""
        self._stop.request()

    def advance(self, send: Send) -> bool:
        """Make what follows, and send it in chunks; not to be called when all of the text was spoken.

        Raises:
            InferenceError: the network failed, or its output is not speech.
        """
        try:
            return not all(send(*piece) for piece in self._make_piece(self._stop)) or self.complete
        except StoppedError:
            return True

    def _make_piece(self, stop: Stop) -> Iterator[tuple[SpeechChunk, NDArray[np.int16]]]:
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


class ClauseSynthesizer(SpeechQueue):
    """Speaks requests concurrently, a piece at a time. The network belongs to its thread from now on."""

    def __init__(self, network: ClauseNetwork, *, name: str, max_requests: int = 64) -> None:
        self._network = network
        super().__init__(self._make_utterance, name=name, max_requests=max_requests)

    def _make_utterance(self, request: SpeakRequest) -> ClauseUtterance:
        rate = request.sample_rate
        if rate is not None and not _LOWEST_RATE <= rate <= _HIGHEST_RATE:
            raise UnsupportedSampleRateError(f"{rate} Hz; possible are {_LOWEST_RATE} to {_HIGHEST_RATE}")
        if request.seed is not None and not 0 <= request.seed < _SEEDS:
            raise InvalidMessageError(f"seed {request.seed} is not between 0 and {_SEEDS - 1}")
        self._network.check(request.voice, request.language)
        return ClauseUtterance(request, self._network)
