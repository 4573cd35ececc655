"""The real server, started once with the whole model repository."""

from __future__ import annotations

import sys

import pytest
import tritonclient.grpc as triton
from leftovers import ANY_PORTS, leftovers

from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.options import ROOT, TINY_PROFILE
from parley.launcher.restarts import SupervisorLimits

sys.path[:0] = [str(ROOT / "perf"), str(ROOT / "build")]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The models of the tiny profile, ready; stopped at the end without a trace."""
    state = tmp_path_factory.mktemp("server")
    # Supervised, as for everybody; but tests stop single processes for a few seconds.
    limits = SupervisorLimits(stopped_s=10.0, quiet_s=10.0, canary_s=8.0)
    running = EmbeddedServer(ServerOptions(state_dir=state, **ANY_PORTS), limits=limits)
    with running:
        session = running.pid
        yield running
    assert leftovers(session, running.shm_prefix) == ([], [])


@pytest.fixture
def client(server):
    """A plain Triton client for the server."""
    connection = triton.InferenceServerClient(server.endpoints.grpc)
    yield connection
    connection.close()


@pytest.fixture
def repository(tmp_path):
    """Writes small model repositories."""

    def add(name, code, *, config=""):
        version = tmp_path / "repository" / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(code)
        configs = version.parent / "configs"
        configs.mkdir()
        (configs / f"{TINY_PROFILE}.pbtxt").write_text(
            f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n'
            'input [{ name: "X" data_type: TYPE_FP32 dims: [-1] }]\n'
            'output [{ name: "Y" data_type: TYPE_FP32 dims: [-1] }]\n'
            f"instance_group [{{ kind: KIND_CPU count: 1 }}]\n{config}"
        )
        return version.parents[1]

    return add
