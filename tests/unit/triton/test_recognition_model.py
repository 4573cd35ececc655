"""A rail's requests as Triton hands them over."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from fake_pb_utils import Request

from parley.asr.messages import AsrReply
from parley.asr.pipeline.step import ChunkResult
from parley.models.recognition import RecognitionModel
from parley.runtime.parameters import Parameters

START = 1
ARGS = {"model_config": json.dumps({"sequence_batching": {"max_sequence_idle_microseconds": "60000000"}})}


class Counting:
    """Answers each chunk with the number of its stream's chunks so far."""

    def new_stream(self, options):
        return SimpleNamespace(chunks=0)

    def step(self, chunks):
        for chunk in chunks:
            chunk.stream.chunks += 1
        return [ChunkResult(chunk.stream, AsrReply(stream_ms=chunk.stream.chunks)) for chunk in chunks]

    def release(self, stream):
        pass


class Chunk(Request):
    def __init__(self, correlation_id, flags=0):
        request = np.array([[b"{}"]], np.object_)
        super().__init__({"AUDIO": np.zeros((1, 0), np.int16), "REQUEST": request})
        self.correlation_id = lambda: correlation_id
        self.flags = lambda: flags


@pytest.fixture
def model(pb_utils):
    model = RecognitionModel(pb_utils, ARGS, Parameters("rail", {}, environment={}), Counting())
    yield model
    model.close()


def test_a_number_and_its_digits_are_two_streams(model):
    def send(correlation_id, flags=0):
        (response,) = model.execute([Chunk(correlation_id, flags)])
        assert not response.has_error(), response.error().message()
        (reply,) = response.output_tensors()
        return json.loads(reply.as_numpy()[0, 0])["stream_ms"]

    assert [send(5, START), send(5), send("5", START), send(5), send("5")] == [1, 2, 1, 3, 2]
