"""The control model over real sockets, and sequences that occupy slots of dead instances."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from parley.launcher.control import ControlError, ModelControl, occupy_dead_slots
from parley.triton.model_control import MAX_MESSAGE_BYTES, ControlService, socket_path


class MetricFamily:
    COUNTER = "counter"
    GAUGE = "gauge"
    made: dict

    def __init__(self, name, description, kind):
        self.made[name] = self
        self.values = {}

    def Metric(self, labels):  # noqa: N802 - Triton's name
        key = tuple(labels.items())
        return SimpleNamespace(
            increment=lambda number: self.values.__setitem__(key, self.values.get(key, 0) + number),
            set=lambda number: self.values.__setitem__(key, number),
            value=lambda: self.values.get(key, 0),
        )


class Triton:
    """What the control model uses of ``pb_utils``."""

    def __init__(self):
        self.calls = []
        self.error = None
        self.hold = None
        self.began = threading.Event()
        self.MetricFamily = type("Family", (MetricFamily,), {"made": {}})

    def load_model(self, model_name, config):
        self.began.set()
        if self.hold:
            self.hold.wait(10)
        if self.error:
            raise self.error
        self.calls.append(("load", model_name, config))

    def unload_model(self, model_name):
        self.calls.append(("unload", model_name))


@pytest.fixture
def make(tmp_path):
    services = []

    def build(instance="parley_control_0_0"):
        triton = Triton()
        services.append(ControlService(triton, socket_path(tmp_path, instance)))
        return triton

    yield build
    for service in services:
        service.close()


@pytest.fixture
def control(tmp_path):
    return ModelControl(tmp_path)


def test_a_model_is_loaded_and_unloaded(make, control):
    triton = make()
    control.load("echo", '{"name":"echo"}', 5)
    control.unload("echo")
    assert triton.calls == [("load", "echo", '{"name":"echo"}'), ("unload", "echo")]


def test_the_error_is_tritons_own(make, control):
    triton = make()
    triton.error = RuntimeError("failed to load 'echo': no weights")
    with pytest.raises(ControlError, match="no weights") as raised:
        control.load("echo", "{}", 5)
    assert raised.value.refused
    triton.error = None
    control.load("echo", "{}", 5)


def test_restarts_and_dead_instances_are_shown_on_the_metrics_page(make, control):
    triton = make()
    control.show({"echo": {"died": 1}}, 2)
    control.show({"": {"unresponsive": 1}, "echo": {"died": 3}, "other": {"died": 0}}, 1)
    made = triton.MetricFamily.made
    assert made["parley_model_restarts_total"].values == {
        (("model", "echo"), ("reason", "died")): 3,
        (("model", "other"), ("reason", "died")): 0,
    }
    assert made["parley_server_restarts_total"].values == {(("reason", "unresponsive"),): 1}
    assert made["parley_dead_instances"].values == {(): 1}


def test_a_load_that_takes_too_long_is_given_up(make, control):
    triton = make()
    triton.hold = threading.Event()
    with pytest.raises(ControlError, match=r"no answer within 0\.2 s") as raised:
        control.load("echo", "{}", 0.2)
    assert not raised.value.refused
    triton.hold.set()


def test_a_small_model_does_not_wait_for_a_large_one(make, control):
    first, second = make("parley_control_0_0"), make("parley_control_0_1")
    first.hold = threading.Event()
    large = threading.Thread(target=control.load, args=("large", "{}", 10))
    large.start()
    assert first.began.wait(5)
    control.load("small", "{}", 5)
    assert [call[1] for call in second.calls] == ["small"]
    first.hold.set()
    large.join()
    assert [call[1] for call in first.calls] == ["large"]


def test_a_dead_process_of_the_control_model_is_passed_over(make, control, tmp_path):
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(socket_path(tmp_path, "parley_control_0_0")))
    dead.close()
    triton = make("parley_control_0_1")
    control.load("echo", "{}", 5)
    assert len(triton.calls) == 1


def test_a_folder_that_is_removed_while_it_is_read_holds_no_control_model(control, monkeypatch):
    def glob(_self, _pattern):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "glob", glob)
    with pytest.raises(ControlError, match="no process of the control model lives"):
        control.show({}, 0)


def test_without_a_control_model_nothing_is_loaded(control):
    with pytest.raises(ControlError, match="no process of the control model lives") as raised:
        control.load("echo", "{}", 5)
    assert not raised.value.refused


@pytest.mark.parametrize("message", [b"", b"{", b'{"type":"reboot"}', b'{"type":"load","model":7}'])
def test_a_message_that_is_none_is_answered_with_an_error(make, control, tmp_path, message):
    triton = make()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path(tmp_path, "parley_control_0_0")))
        connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
        assert b'"error":"' in connection.recv(4096)
    assert triton.calls == []
    control.unload("echo")


def test_a_message_without_end_is_cut_off(make, control, tmp_path):
    make()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(socket_path(tmp_path, "parley_control_0_0")))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(b"x" * 64 * MAX_MESSAGE_BYTES)
    control.unload("echo")


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


class SlotServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """``places``: by number of the sequence, whether its instance is dead; ``words``: its error then."""

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
    triton = SlotServer(places, words)
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
        with occupy_dead_slots(address, config_of(2), 1) as held:
            assert held
            begun = [name for name, start, end in triton.requests if start and not end]
            assert len(triton.requests) == len(set(begun)) == 3
        assert triton.ended.wait(10)
    # Its slot stays taken: only the sequences of the living instance are ended.
    assert triton.requests[3:] == [(name, False, True) for name in begun[:2]]
    assert not triton.cancelled


def test_one_sequence_is_enough_when_no_other_instance_lives():
    with serving(True) as (address, triton):
        with occupy_dead_slots(address, config_of(1), 1) as held:
            assert held
        assert triton.ended.wait(10)
        assert [(start, end) for _, start, end in triton.requests] == [(True, False)]


@pytest.mark.parametrize(
    "words", ["Stub process 'agent_0_0' is not healthy.", "Failed to obtain the health mutex."]
)
def test_a_sequence_of_a_dead_instance_is_not_ended_whatever_is_said_of_it(words):
    with serving(True, words=words) as (address, triton):
        with occupy_dead_slots(address, config_of(1), 1) as held:
            assert held
            time.sleep(0.3)  # the answer comes while the instance is replaced
        assert triton.ended.wait(10)
        assert [(start, end) for _, start, end in triton.requests] == [(True, False)]


def test_dead_instances_that_are_not_found_are_logged(caplog):
    with serving(*[False] * 64) as (address, triton):
        with occupy_dead_slots(address, config_of(2), 1) as held:
            assert not held
        assert triton.ended.wait(10)
    begun = [name for name, start, _ in triton.requests if start]
    assert [name for name, _, end in triton.requests if end] == begun
    assert "no sequence of agent could be begun on its dead instance" in caplog.text


def test_a_server_that_is_gone_is_not_waited_for():
    with serving() as (address, _):
        pass
    with occupy_dead_slots(address, config_of(2), 1) as held:
        assert not held
