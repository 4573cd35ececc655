"""The launcher and the control model, over real sockets."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from parley.launcher.control import ControlError, ModelControl
from parley.triton.model_control import MAX_MESSAGE_BYTES, ControlService, socket_path


class MetricFamily:
    COUNTER = "counter"
    made: dict

    def __init__(self, name, description, kind):
        self.made[name] = self
        self.values = {}

    def Metric(self, labels):  # noqa: N802 - Triton's name
        key = tuple(labels.items())
        return SimpleNamespace(
            increment=lambda number: self.values.__setitem__(key, self.values.get(key, 0) + number)
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


def test_tritons_own_words_come_back(make, control):
    triton = make()
    triton.error = RuntimeError("failed to load 'echo': no weights")
    with pytest.raises(ControlError, match="no weights") as raised:
        control.load("echo", "{}", 5)
    assert raised.value.refused
    triton.error = None
    control.load("echo", "{}", 5)


def test_restarts_are_counted_on_the_metrics_page(make, control):
    triton = make()
    control.count("echo", "died")
    control.count("echo", "died", 2)
    control.count("", "unresponsive")
    control.count("other", "died", 0)
    made = triton.MetricFamily.made
    assert made["parley_model_restarts_total"].values == {
        (("model", "echo"), ("reason", "died")): 3,
        (("model", "other"), ("reason", "died")): 0,
    }
    assert made["parley_server_restarts_total"].values == {(("reason", "unresponsive"),): 1}


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
        control.count("echo", "died")


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
