"""Which sequences are begun and ended while a dead instance is replaced."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from parley.launcher.slots import held_slots

CONFIG = """
    name: "agent" max_batch_size: 1 sequence_batching { oldest { max_candidate_sequences: 4 } }
    input [
      { name: "MESSAGE" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "AUDIO" data_type: TYPE_UINT8 dims: [ -1 ] }
    ]
"""


def config_of(instances):
    group = 'instance_group {{ name: "agent_{}" kind: KIND_CPU count: 1 }}'
    text = CONFIG + "\n".join(group.format(number) for number in range(instances))
    return text_format.Parse(text, model_config_pb2.ModelConfig())


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """``places``: by number of the sequence, whether its instance is dead; ``words``: what it says then."""

    def __init__(self, places, words=""):
        self._places = iter(places)
        self._words = words
        self._instances = {}
        self.requests = []
        self.replaced = threading.Event()
        self.ended = threading.Event()
        self.cancelled = False

    def ModelStreamInfer(self, requests, context):  # noqa: N802 - gRPC's name
        late = []
        for request in requests:
            flags = request.parameters
            name = flags["sequence_id"].string_param
            start, end = flags["sequence_start"].bool_param, flags["sequence_end"].bool_param
            self.requests.append((name, start, end))
            if start:
                self._instances[name] = next(self._places)
            if self._instances[name] and self._words:
                yield answer(request.id, self._words)
            elif self._instances[name]:
                late.append(request.id)
            else:
                yield answer(request.id, "invalid_message: it is empty")
        for each in late:
            yield answer(each, "Stub process 'agent_0_0' is not healthy.")
        self.cancelled = not context.is_active()
        self.ended.set()


def answer(name, text):
    response = service_pb2.ModelInferResponse(id=name)
    return service_pb2.ModelStreamInferResponse(infer_response=response, error_message=text)


@contextmanager
def serving(*places, words=""):
    triton = Triton(places, words)
    server = grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", triton
    finally:
        server.stop(0).wait()


def test_sequences_are_begun_until_a_dead_instance_has_one():
    with serving(False, False, True) as (address, triton):
        with held_slots(address, config_of(2), 1) as held:
            assert held
            begun = [name for name, start, end in triton.requests if start and not end]
            assert len(triton.requests) == len(set(begun)) == 3
        assert triton.ended.wait(10)
    # Its slot stays taken: only the sequences of the living instance are ended.
    assert triton.requests[3:] == [(name, False, True) for name in begun[:2]]
    assert not triton.cancelled


def test_one_sequence_is_enough_when_no_other_instance_lives():
    with serving(True) as (address, triton):
        with held_slots(address, config_of(1), 1) as held:
            assert held
        assert triton.ended.wait(10)
        assert [(start, end) for _, start, end in triton.requests] == [(True, False)]


@pytest.mark.parametrize(
    "words", ["Stub process 'agent_0_0' is not healthy.", "Failed to obtain the health mutex."]
)
def test_a_sequence_of_a_dead_instance_is_not_ended_whatever_is_said_of_it(words):
    with serving(True, words=words) as (address, triton):
        with held_slots(address, config_of(1), 1) as held:
            assert held
            time.sleep(0.3)  # the answer comes while the instance is replaced
        assert triton.ended.wait(10)
        assert [(start, end) for _, start, end in triton.requests] == [(True, False)]


def test_dead_instances_that_are_not_found_are_told(caplog):
    with serving(*[False] * 64) as (address, triton):
        with held_slots(address, config_of(2), 1) as held:
            assert not held
        assert triton.ended.wait(10)
    begun = [name for name, start, _ in triton.requests if start]
    assert [name for name, _, end in triton.requests if end] == begun
    assert "no sequence of agent could be begun on its dead instance" in caplog.text


def test_a_server_that_is_gone_is_not_waited_for():
    with serving() as (address, _):
        pass
    with held_slots(address, config_of(2), 1) as held:
        assert not held
