"""A rail's requests as Triton hands them over."""

import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from fake_pb_utils import Request

from parley.asr.messages import AsrReply
from parley.asr.pipeline.step import ChunkResult
from parley.models.recognition import Periodic, RecognitionModel
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


DEADLINE_S = 10


def test_it_runs_again_and_again_also_after_a_failure(caplog):
    seen: list[str] = []
    enough = threading.Event()

    def run():
        seen.append(threading.current_thread().name)
        if len(seen) == 1:
            raise ValueError("once")
        if len(seen) == 3:
            enough.set()

    periodic = Periodic(0.001, run)
    assert enough.wait(DEADLINE_S)
    periodic.close()
    assert "once" in caplog.text
    assert set(seen) == {"periodic"}


def test_closing_ends_the_thread_without_waiting_for_the_interval():
    periodic = Periodic(3600, lambda: None)
    periodic.close()
    assert not periodic._thread.is_alive()
