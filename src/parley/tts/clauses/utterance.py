"""One request on its way from text to chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from parley.audio.resample import Resampler
from parley.tts.clauses.network import ClauseNetwork, ClauseSound, Stop
from parley.tts.clauses.sound import amplify, check_sound, pause_samples, trim
from parley.tts.clauses.splitting import split_clauses
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.messages import SpeakRequest, SpeechChunk, WordMark
from parley.tts.plain_text import is_speakable
from parley.tts.word_marks import WordMarker

_CHUNK_S = 1.0
"""Longest audio of one chunk."""
_NOTHING = np.zeros(0, np.int16)


class Utterance:
    """Makes the audio of a request, clause by clause, as one stream.

    Args:
        request: what to say.
        network: says it.
    """

    def __init__(self, request: SpeakRequest, network: ClauseNetwork) -> None:
        self._request = request
        self._network = network
        self._rate = request.sample_rate or network.sample_rate
        self._marker = WordMarker(request.text)
        self._clauses: deque[list[PronouncedWord]] | None = None  # None: not pronounced yet
        self._resampler = Resampler(network.sample_rate, self._rate)
        self._made = 0  # samples at the network's rate
        self._sent = 0  # samples at the rate of the chunks

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to make."""
        return self._clauses is not None and not self._clauses

    @property
    def made_s(self) -> float:
        """Seconds of audio made so far."""
        return self._made / self._network.sample_rate

    def make_clause(self, stop: Stop) -> Iterator[tuple[SpeechChunk, NDArray[np.int16]]]:
        """The audio of the next clause, in chunks.

        Raises:
            StoppedError: it is not wanted any more.
            InferenceError: the network failed, or made what is no speech.
        """
        if self._clauses is None:
            text = self._request.text
            words = self._network.pronounce(text) if is_speakable(text) else []
            self._clauses = deque(split_clauses(words))
        if not self._clauses:
            return
        words = self._clauses[0]
        sound = self._network.speak(words, self._request.voice, stop)
        check_sound(sound.audio)
        self._clauses.popleft()
        audio, marks = self._placed(words, sound)
        resampled = self._resampler.push(audio)
        if self.complete:
            marks += self._marker.rest()
            resampled = np.concatenate([resampled, self._resampler.finish()])
        yield from self._chunks(words, resampled, marks)

    def _placed(
        self, words: list[PronouncedWord], sound: ClauseSound
    ) -> tuple[NDArray[np.int16], list[WordMark]]:
        """The clause's audio with the pause after it, and where its words begin in the whole."""
        rate = self._network.sample_rate
        trimmed = trim(sound.audio, rate)
        spoken = amplify(trimmed.audio, self._network.gain_db(self._request.voice), rate)
        ratio = self._rate / rate
        marks: list[WordMark] = []
        for word, begins in zip(words, sound.begins, strict=True):
            within = min(max(0, begins - trimmed.cut), max(0, len(spoken) - 1))
            marks += self._marker.event(word.start, int((self._made + within) * ratio))
        pause = np.zeros(pause_samples(words[-1].after, rate), np.int16)
        audio = np.concatenate([spoken, pause])
        self._made += len(audio)
        return audio, marks

    def _chunks(
        self, words: list[PronouncedWord], audio: NDArray[np.int16], marks: list[WordMark]
    ) -> Iterator[tuple[SpeechChunk, NDArray[np.int16]]]:
        size = int(_CHUNK_S * self._rate)
        pieces = [audio[begin : begin + size] for begin in range(0, len(audio), size)] or [_NOTHING]
        for piece in pieces:
            end = self._sent + len(piece)
            is_last = piece is pieces[-1]
            here = [mark for mark in marks if is_last or mark.at_sample < end]
            del marks[: len(here)]
            chunk = SpeechChunk(
                sample_rate=self._rate,
                offset=self._sent,
                words=here,
                start_char=words[0].start,
                end_char=words[-1].end,
            )
            self._sent = end
            yield chunk, piece
