"""The real server, started once with the whole model repository."""

from __future__ import annotations

import fcntl
import sys
from contextlib import ExitStack, contextmanager
from pathlib import PurePath

import pytest
import tritonclient.grpc as triton
from leftovers import ANY_PORTS, leftovers
from xdist.scheduler import LoadFileScheduling

from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.options import ROOT, TINY_PROFILE
from parley.launcher.restarts import SupervisorLimits
from parley.triton.grpc_client import LoopbackClient

sys.path[:0] = [str(ROOT / "perf"), str(ROOT / "build")]

# Their limits are those of a machine with one server; the others bear a second one beside them.
_ALONE = {
    "test_many_sessions.py",
    "test_recovery.py",
    "test_restarts.py",
    "test_sessions.py",
    "test_smart_turn.py",
    "observed",
}


def is_alone(path: PurePath) -> bool:
    return not _ALONE.isdisjoint((path.name, path.parent.name))


class _Scheduling(LoadFileScheduling):
    """One process runs all files that share a server, and one all those that run alone, at the end.

    Each process that needs a server starts one. A file that runs alone waits for the other processes, and
    they wait for it.
    """

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        if is_alone(PurePath(file)):
            return "alone"
        folder, _, _ = file.rpartition("/")
        return folder if folder.endswith(("/agents", "/chatterbox")) else file

    def _assign_work_unit(self, node):
        if "alone" in self.workqueue:
            self.workqueue.move_to_end("alone")
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return _Scheduling(config, log) if config.option.dist == "loadfile" else None


class _FileLock:
    """Lets some of the files run while no other one does, where several processes run tests (``-n``).

    A file keeps the lock to its end: between two of its tests its calls go on, and waiting would hold their
    event loop.
    """

    def __init__(self, folder):
        self._folder = folder
        self._held = ExitStack()
        self._path = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        if item.path != self._path:
            self._held.close()
            self._enter(item.path)
        try:
            return (yield)
        finally:
            if nextitem is None or nextitem.path != item.path:
                self._held.close()
                self._path = None

    def _enter(self, path):
        kind = fcntl.LOCK_EX if is_alone(path) else fcntl.LOCK_SH
        # A file that waits for the running ones to end keeps new ones from starting.
        with _lock(self._folder / "entering", kind):
            self._held.enter_context(_lock(self._folder / "running", kind))
        self._path = path


@contextmanager
def _lock(path, kind):
    with path.open("a") as file:
        fcntl.flock(file, kind)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a process that was forked may hold the file open


def pytest_configure(config):
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(_FileLock(config.cache.mkdir("triton")))


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The models of the tiny profile, ready; stopped at the end without a trace."""
    state = tmp_path_factory.mktemp("server")
    # Supervised, as for everybody; but tests stop single processes for a few seconds.
    limits = SupervisorLimits(model_stopped_s=10.0, quiet_s=10.0, canary_s=8.0)
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
async def port(server):
    """Asks the server's models as a model of the server does; a file may have a server of its own."""
    port = LoopbackClient(server.endpoints.grpc)
    yield port
    await port.close()


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
