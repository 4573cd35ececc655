"""Networks whose texts follow from their audio alone."""

from __future__ import annotations

import numpy as np

from parley.asr.reader import ReadOptions
from parley.asr.readers.attention import (
    AttentionModel,
    AttentionReader,
    DecoderStep,
    EncodedAudio,
    Prompt,
    TextLimits,
    Vocabulary,
)
from parley.asr.readers.moonshine import END, LONGEST, RULES, SHORTEST, START
from parley.asr.utterances.worker import ReadRequest
from parley.errors import InferenceError, OverloadedError

MS = 16
WORDS = 2_000
NOTHING = ReadOptions()
NOWHERE = np.zeros((0, 1), np.float32)
VOCABULARY = Vocabulary(
    (b"<unk>", b"<s>", b"</s>", *(f"▁t{n}".encode() for n in range(WORDS))), frozenset(range(3))
)


class LengthNetwork:
    """The text of audio is one word that names its length in tens of milliseconds, such as ``t120``.

    Audio that is nearly silent has one too, of which the network is not sure.
    """

    def __init__(self):
        self.read = []  # samples of everything that was encoded
        self.failure = None
        self.fails_on_silence = True

    def encode(self, audio, stop):
        if self.failure is not None and (self.fails_on_silence or audio.any()):
            raise self.failure
        self.read.append(len(audio))
        sure = float(np.abs(audio).max() > 0.05)
        return EncodedAudio(np.array([[[len(audio), sure]]], np.float32))

    def step(self, encoded, tokens, past):
        samples, sure = encoded.states[0, 0]
        scores = np.zeros(len(VOCABULARY.pieces), np.float32)
        chosen = END if past else 3 + int(samples) // (10 * MS)
        scores[chosen] = 20.0 if sure else 1.0
        return DecoderStep(np.tile(scores, (len(tokens), 1)), {"said": np.ones(1, np.float32)}, NOWHERE)


class ScriptedNetwork:
    """Says the tokens of a script, whatever the audio; each may have rivals with scores of their own."""

    def __init__(self, *script, tokens=40):
        self.script = script
        self.tokens = tokens
        self.fed = []

    def encode(self, audio, stop):
        return EncodedAudio(np.zeros((1, 1, 1), np.float32))

    def step(self, _encoded, tokens, past):
        self.fed += tokens
        at = len(past) if past else 0
        scores = np.zeros(self.tokens, np.float32)
        said = self.script[at] if at < len(self.script) else {END: 9.0}
        for choice, score in (said if isinstance(said, dict) else {said: 9.0}).items():
            scores[choice] = score
        past = {str(number): np.zeros(0, np.float32) for number in range(at + 1)}
        return DecoderStep(np.tile(scores, (len(tokens), 1)), past, NOWHERE)


class HeldReader:
    """Reads when the test says so."""

    def __init__(self, reader):
        self.reader = reader
        self.waiting = []
        self.room = 100
        self.failure = None

    def ask(self, stretch, *, final, of, beside=()):
        if len(self.waiting) >= self.room:
            raise OverloadedError("no room")
        asked = ReadRequest(stretch, final=final, of=of, clock=lambda: 0.0)
        self.waiting.append(asked)
        return asked

    def read(self, count=None):
        """Read what was asked for; return how much was wanted."""
        now, self.waiting = self.waiting[:count], self.waiting[len(self.waiting[:count]) :]
        wanted = [asked for asked in now if not asked.dropped]
        for asked in wanted:
            asked.resolve(*self.reader.read_all([asked.stretch]))
        return wanted

    def check(self):
        if self.failure is not None:
            raise self.failure


def new_model(network=None, **fields):
    """A model of the family Moonshine."""
    fixed = {
        "vocabulary": VOCABULARY,
        "prompt": Prompt(START),
        "rules": RULES,
        "shortest": SHORTEST,
        "longest": LONGEST,
        "limits": TextLimits(least_confidence=0.45),
    }
    return AttentionModel(network or LengthNetwork(), **(fixed | fields))


def new_reader(network=None, **fields):
    return AttentionReader(new_model(network, **fields))


def broken():
    return InferenceError("it broke")
