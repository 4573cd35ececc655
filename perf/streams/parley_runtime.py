"""Parley's streaming recogniser, as ``nemotron_streaming`` runs it, but for the voice activity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.boosting import compile_phrases
from parley.asr.decoding.words import text_of, words_of
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.recognizer import StreamingRecognizer
from parley.asr.streaming.utterance import StreamingUtterance
from parley.models.nemotron_streaming import load_recognizer
from parley.runtime.onnx import open_session
from streams.contract import serve

_SLOTS = 128


class ParleyRuntime:
    """:class:`streams.contract.Runtime`."""

    def __init__(self, recognizer: StreamingRecognizer, checkpoint: Checkpoint, frames: int) -> None:
        self._recognizer = recognizer
        self._checkpoint = checkpoint
        self._frames = frames
        self._no_phrases = compile_phrases([], 0.0, checkpoint.vocabulary)
        self.chunk = frames * checkpoint.config.hop_length

    def open(self) -> StreamingUtterance:
        """See the interface."""
        utterance = StreamingUtterance(1, 0, chunk=self._frames, boosting=self._no_phrases, keep_audio=False)
        utterance.slot = self._recognizer.acquire()
        return utterance

    def feed(self, streams: Sequence[StreamingUtterance], pieces: Sequence[NDArray[np.int16]]) -> None:
        """See the interface."""
        for utterance, piece in zip(streams, pieces, strict=True):
            self._recognizer.write(utterance, piece)
            utterance.push(piece)
        self._recognize(streams)

    def close(self, stream: StreamingUtterance) -> str:
        """See the interface."""
        stream.ended = True
        self._recognize([stream])
        assert stream.slot is not None
        self._recognizer.release(stream.slot)
        return text_of(words_of(stream.tokens(), self._checkpoint))

    def _recognize(self, streams: Sequence[StreamingUtterance]) -> None:
        rounds = self._recognizer.recognize(streams)
        for utterance in streams:
            if utterance.failure is not None:
                raise utterance.failure
        rounds.keep([utterance.slot for utterance in streams if utterance.slot is not None])


def load(model: Path, look_ahead: int) -> ParleyRuntime:
    """Open an export."""
    export = streaming_checkpoint.load(model)
    wanted = export.look_ahead_ms(look_ahead)
    recognizer, chunks = load_recognizer(export, [wanted], open_session, slots=_SLOTS, audio=2 * 16 * wanted)
    return ParleyRuntime(recognizer, export.checkpoint, chunks[wanted])


if __name__ == "__main__":
    serve(load)
