"""One request on its way from text to chunks."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from parley.audio.resample import Resampler
from parley.tts.chatterbox.segments import cut
from parley.tts.clauses.network import ClauseNetwork, ClauseSound, Stop
from parley.tts.clauses.sound import pause_samples
from parley.tts.clauses.splitting import split_clauses
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.messages import SpeakRequest, SpeechChunk, WordMark
from parley.tts.plain_text import is_speakable
from parley.tts.word_marks import WordMarker

_CHUNK_S = 1.0
"""Longest audio of one chunk."""
_READ_AT_ONCE = 250
"""Characters that are pronounced together: with figures in them, they take tens of milliseconds."""
_NOTHING = np.zeros(0, np.int16)


class ClauseUtterance:
    """Makes the audio of a request, piece by piece, as one stream.

    Args:
        request: what to say.
        network: says it.
    """

    def __init__(self, request: SpeakRequest, network: ClauseNetwork) -> None:
        self._request = request
        self._network = network
        self._rate = request.sample_rate or network.sample_rate
        self._marker = WordMarker(request.text)
        self._unread = deque(cut(request.text, _READ_AT_ONCE))
        self._read = 0  # characters
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
        """Whether there is nothing left to make."""
        return not self._clauses and not self._unread

    @property
    def made_s(self) -> float:
        """Seconds of audio made so far."""
        return self._made / self._network.sample_rate

    def make_piece(self, stop: Stop) -> Iterator[tuple[SpeechChunk, NDArray[np.int16]]]:
        """The audio that follows, in chunks; not to be called when it is complete.

        Raises:
            StoppedError: it is not wanted any more.
            InferenceError: the network failed, or made what is no speech.
        """
        while not self._clauses and self._unread:
            self._pronounce(self._unread.popleft())
        audio = self._make(self._clauses[0], stop) if self._clauses else _NOTHING
        self._made += len(audio)
        resampled = self._resampler.push(audio)
        if self.complete:
            if self._made:  # else nothing was said, and no word was heard
                self._due += self._marker.rest()
            resampled = np.concatenate([resampled, self._resampler.finish()])
        yield from self._chunks(resampled)

    def _pronounce(self, text: str) -> None:
        words = self._network.pronounce(text) if is_speakable(text) else []
        placed = [
            dataclasses.replace(word, start=word.start + self._read, end=word.end + self._read)
            for word in words
        ]
        clauses = split_clauses(placed, self._network.limits, before=self._cut)
        self._clauses += clauses
        self._cut += len(clauses)
        self._read += len(text)

    def _make(self, words: Sequence[PronouncedWord], stop: Stop) -> NDArray[np.int16]:
        """The next samples of a clause, with the pause after it."""
        rate = self._network.sample_rate
        if self._sound is None:
            self._sound = self._network.speak(words, self._request, stop)
            for word, begins in zip(words, self._sound.begins, strict=True):
                at_sample = int((self._made + begins) * self._rate / rate)
                self._due += self._marker.event(word.start, at_sample)
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
            start_char, end_char = self._heard(begun)
            chunk = SpeechChunk(
                sample_rate=self._rate,
                offset=self._sent,
                words=begun,
                start_char=start_char,
                end_char=end_char,
            )
            self._sent = end
            yield chunk, piece

    def _heard(self, begun: list[WordMark]) -> tuple[int, int]:
        """The text of which something is heard in a piece: its words, after the one that was under way."""
        marks = [self._under_way, *begun] if self._under_way else begun
        if not marks:
            return 0, 0
        self._under_way = marks[-1]
        first = marks[1] if len(marks) > 1 and marks[1].at_sample <= self._sent else marks[0]
        return first.start_char, marks[-1].end_char
