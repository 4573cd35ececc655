"""Where the audio of a request to a synthesizer goes in these tests."""

import threading

import numpy as np


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

    @property
    def words(self):
        return [word for chunk in self.chunks for word in chunk.words]
