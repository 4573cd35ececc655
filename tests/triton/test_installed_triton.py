"""A Triton in a folder, as NVIDIA's images have it at /opt/tritonserver, under the launcher's supervisor."""

from __future__ import annotations

import os
import signal
import time

import pytest
from leftovers import ANY_PORTS, leftovers

from parley.canaries.asking import call_canaries
from parley.canaries.models import CanaryError
from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.command import find_installation
from parley.launcher.processes import find_stubs

LIMIT_S = 60.0
MODEL = "espeak"


@pytest.fixture
def folder(tmp_path):
    """The embedded Triton, laid out as in those images."""
    embedded = find_installation()
    for name in ("bin", "backends/python"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lib").symlink_to(embedded.libraries)
    (tmp_path / "bin" / "tritonserver").symlink_to(embedded.tritonserver)
    for file in (*embedded.python_backend.iterdir(), embedded.stub):
        if file.is_file():
            (tmp_path / "backends" / "python" / file.name).symlink_to(file)
    return tmp_path


def answers(server):
    try:
        return call_canaries(server.endpoints.grpc, [MODEL], LIMIT_S)
    except CanaryError:
        return []


def test_a_model_that_dies_is_loaded_again(folder, tmp_path):
    server = EmbeddedServer(
        ServerOptions(load_models=(MODEL,), triton=folder, state_dir=tmp_path / "state", **ANY_PORTS)
    )
    with server:
        session = server.pid
        (died,) = [stub for stub in find_stubs(session) if stub.model == MODEL]
        os.kill(died.pid, signal.SIGKILL)
        end = time.monotonic() + LIMIT_S
        while not (server.restarts()[MODEL] and answers(server)):
            assert time.monotonic() < end
            time.sleep(0.1)
        assert server.restarts()[MODEL] == {"died": 1}
        assert server.pid == session
    assert leftovers(session, server.shm_prefix) == ([], [])
