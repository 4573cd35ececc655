"""Which request the queue of a synthesizer serves next."""

from __future__ import annotations

import threading

import numpy as np

from parley.tts.messages import SpeakRequest, SpeechChunk
from parley.tts.queue import SpeechQueue

RATE = 1_000


class Sink:
    """Writes down when its request has ended."""

    wanted = True

    def __init__(self, log, name):
        self._log = log
        self._name = name
        self.ended = threading.Event()

    def on_begun(self):
        pass

    def send(self, chunk, audio):
        self._log.append(f"audio of {self._name}")
        return True

    def finish(self):
        self._log.append(f"end of {self._name}")
        self.ended.set()

    def fail(self, error):
        raise AssertionError(error)


class Speech:
    """Two pieces of an hour each; ``on_piece`` is called when one is complete."""

    def __init__(self, on_piece):
        self._on_piece = on_piece
        self._pieces = 0
        self.stopped = False

    @property
    def made_s(self):
        if self._pieces:
            self._on_piece()
        return 3_600.0 * self._pieces

    def stop(self):
        self.stopped = True

    def advance(self, send):
        send(SpeechChunk(sample_rate=RATE, offset=0), np.zeros(1, np.int16))
        self._pieces += 1
        return self._pieces == 2


def test_abort_between_a_piece_and_the_next_ends_the_request_before_others_go_on():
    log, both = [], threading.Event()
    hooks = {"first": lambda: both.wait(10) and queue.abort("first"), "second": lambda: None}
    queue = SpeechQueue(lambda request: Speech(hooks[request.request_id]), name="speech", max_requests=4)
    sinks = {name: Sink(log, name) for name in hooks}
    try:
        for name, sink in sinks.items():
            queue.submit(SpeakRequest(request_id=name, text="Hi."), sink)
        both.set()
        for sink in sinks.values():
            assert sink.ended.wait(10)
        assert log == [
            "audio of first",
            "end of first",
            "audio of second",
            "audio of second",
            "end of second",
        ]
    finally:
        queue.close()
