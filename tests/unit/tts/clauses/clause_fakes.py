"""A network without weights, and a place where audio goes."""

from __future__ import annotations

import re
import threading

import numpy as np

from parley.errors import UnsupportedLanguageError, UnsupportedVoiceError
from parley.runtime.onnx import StoppedError
from parley.tts.clauses.network import WholeSound
from parley.tts.clauses.splitting import ClauseLimits
from parley.tts.english.pronouncer import PronouncedWord

RATE = 24_000
WORD = 2_400
"""Samples of a word."""
LEAD = 4_800
"""Samples of silence at both ends of a clause."""


class FakeNetwork:
    """A word is a tone of 100 ms; a clause has silence around it."""

    sample_rate = RATE
    limits = ClauseLimits()

    def __init__(self):
        self.made = []
        self.read = []
        self.failures = []
        self.gate = threading.Event()  # clear: nothing is finished
        self.gate.set()
        self.begun = threading.Semaphore(0)

    def check(self, voice, language):
        if voice not in (None, "ann", "ben"):
            raise UnsupportedVoiceError(voice)
        if language != "en":
            raise UnsupportedLanguageError(language)

    def pronounce(self, text, language):
        self.read.append(text)
        words = []
        for match in re.finditer(r"\S*[a-z]\S*", text, re.IGNORECASE):
            bare = match[0].rstrip(".,!?")
            after = match[0][len(bare) :]
            words.append(PronouncedWord(bare, bare, match.start(), match.end(), "", after))
        return words

    def speak(self, words, request, stop):
        self.made.append(" ".join(word.text for word in words))
        self.begun.release()
        while not self.gate.wait(0.001):
            if stop.requested:
                raise StoppedError
        if self.failures:
            failure = self.failures.pop()
            if isinstance(failure, Exception):
                raise failure
            return WholeSound(failure, [0] * len(words), gain_db=0.0, rate_hz=RATE)
        tone = 0.3 * np.sin(2 * np.pi * 40 / WORD * np.arange(WORD * len(words)))
        silence = np.zeros(LEAD)
        audio = np.concatenate([silence, tone, silence]).astype(np.float32)
        begins = [LEAD + WORD * index for index in range(len(words))]
        return WholeSound(audio, begins, gain_db=6.0 if request.voice == "ben" else 0.0, rate_hz=RATE)


class Pieces:
    """The sound of a clause in pieces of a word each."""

    def __init__(self, words):
        self.begins = [index * WORD for index in range(len(words))]
        self.left = len(words)

    @property
    def complete(self):
        return self.left == 0

    def make(self, stop):
        if stop.requested:
            raise StoppedError
        self.left -= 1
        return np.full(WORD, 1000, np.int16)


class PieceNetwork(FakeNetwork):
    """As the other, in pieces."""

    limits = ClauseLimits(words=((3, 60),), by_sentence=True)

    def speak(self, words, request, stop):
        self.made.append(" ".join(word.text for word in words))
        return Pieces(words)


class Sink:
    """Keeps what it is given."""

    def __init__(self, takes=None):
        self.chunks, self.audio = [], []
        self.takes = takes  # chunks, before no more is wanted
        self.wanted = True
        self.error = None
        self.ended = threading.Event()
        self.ends = 0
        self.begun = 0

    def on_begun(self):
        self.begun += 1

    def send(self, chunk, audio):
        if self.takes is not None and len(self.chunks) >= self.takes:
            return False
        assert chunk.offset == sum(map(len, self.audio))
        self.chunks.append(chunk)
        self.audio.append(audio)
        return True

    def finish(self):
        self.ends += 1
        self.ended.set()

    def fail(self, error):
        self.error = self.error or error
        self.ends += 1
        self.ended.set()

    def wait(self):
        assert self.ended.wait(10)
        if self.error is not None:
            raise self.error
        return self

    @property
    def samples(self):
        return np.concatenate(self.audio) if self.audio else np.zeros(0, np.int16)

    @property
    def words(self):
        return [word for chunk in self.chunks for word in chunk.words]
