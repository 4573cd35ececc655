"""Synthesizers in these tests: what reads their texts, and where the audio of a request goes."""

import threading

import numpy as np

from parley.tts.english.pronouncer import EnglishFrontEnd, load_pronouncer
from parley.tts.normalization.normalizer import TextNormalizer


def open_front_end(models):
    """Without grammars: compiling them takes half a minute, and these texts need none."""
    pronouncer = load_pronouncer(models / "misaki-en", models / "g2p-en")
    return EnglishFrontEnd(TextNormalizer({}, tags=False), pronouncer)


class Sink:
    """Keeps what is said."""

    wanted = True

    def __init__(self):
        self.chunks, self.audio, self.error = [], [], None
        self.heard, self.ended = threading.Event(), threading.Event()

    def on_begun(self):
        pass

    def send(self, chunk, audio):
        self.chunks.append(chunk)
        self.audio.append(audio)
        self.heard.set()
        return True

    def finish(self):
        self.ended.set()

    def fail(self, error):
        self.error = error
        self.ended.set()

    @property
    def samples(self):
        assert self.ended.wait(120)
        assert self.error is None
        return np.concatenate(self.audio) if self.audio else np.zeros(0, np.int16)

    def quiet(self, size, share):
        """Which blocks of so many samples have less than this share of the loudest one's power."""
        samples = self.samples
        blocks = samples[: len(samples) // size * size].reshape(-1, size)
        power = np.square(blocks.astype(float)).mean(axis=1)
        return power < power.max() * share

    @property
    def words(self):
        return [word for chunk in self.chunks for word in chunk.words]
