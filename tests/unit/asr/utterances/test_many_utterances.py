"""A piece of audio with more utterances than texts of a stream may wait."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from asr_fakes import LoudnessModels
from segment_fakes import MS, LoudReader

from parley.asr.messages import AsrOptions, TranscriptEvent
from parley.asr.service import ChunkRequest, ChunkResult
from parley.asr.utterances.pipeline import SegmentPipeline, SegmentPipelineLimits
from parley.asr.utterances.worker import ThreadedReader
from parley.errors import OverloadedError
from parley.protocol import VadOptions

TIMEOUT_S = 10
MANY = 19
ONE = np.concatenate([np.full(256 * MS, 8_000, np.int16), np.zeros(256 * MS, np.int16)])


class HeldReader(LoudReader):
    """Reads from when the test permits it."""

    def __init__(self):
        super().__init__()
        self.permitted = threading.Event()

    def read_together(self, stretches, stop):
        assert self.permitted.wait(TIMEOUT_S)
        return super().read_together(stretches, stop)


@pytest.mark.parametrize("room", [4, 100])
def test_a_piece_is_admitted_whole_or_refused_by_what_waited_before_it(room):
    reader = HeldReader()
    text_reader = ThreadedReader(reader, room=room)
    limits = SegmentPipelineLimits()
    pipeline = SegmentPipeline(reader, text_reader, LoudnessModels(), limits, model="sherpa_onnx")
    options = AsrOptions(partial_interval_ms=0, vad=VadOptions(silence_ms=160))
    (first,) = pipeline.step([ChunkRequest(pipeline.new_stream(options), np.tile(ONE, MANY))])
    assert isinstance(first, ChunkResult)
    stream = first.stream
    assert len(stream.awaited) == MANY

    (refused,) = pipeline.step([ChunkRequest(stream, ONE)])
    assert isinstance(refused, OverloadedError)
    last = stream.awaited[-1]
    reader.permitted.set()
    for part in last._parts:
        part.future.result(TIMEOUT_S)
    (later,) = pipeline.step([ChunkRequest(stream, ONE)])
    assert isinstance(later, ChunkResult)
    texts = [event.text for event in later.reply.events if isinstance(event, TranscriptEvent)]
    assert texts[:MANY] == ["w25"] * MANY
    text_reader.close(TIMEOUT_S)
