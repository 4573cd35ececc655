"""The launcher with the real tritonserver."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import httpx2
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from leftovers import ANY_PORTS, leftovers, shared_memory_bytes
from triton_check.probes import index_by_http2, lock_header

from parley.canaries.asking import ask_canaries, call_canaries, profile_models
from parley.canaries.models import CanaryError
from parley.launcher import EmbeddedServer, LauncherError, ServerOptions
from parley.launcher.cleanup import SHARED_MEMORY
from parley.launcher.errors import AlreadyRunningError, ModelFailedError, PortBusyError
from parley.launcher.options import ROOT, TINY_PROFILE
from parley.launcher.processes import find_stubs, session_members
from parley_client.cli.program import main

ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", value * 2)]) for value in inputs]
"""
GOOD = ECHO.format(initialize="pass")
ON_FREE_PORTS = ("--profile", TINY_PROFILE, "--any-port")


def options(tmp_path, repository, **more):
    return ServerOptions(
        **{"model_repository": repository, "state_dir": tmp_path / "state", **ANY_PORTS, **more}
    )


def infer(address):
    client = triton.InferenceServerClient(address)
    try:
        tensor = triton.InferInput("X", [3], "FP32")
        tensor.set_data_from_numpy(np.array([1, 2, 3], np.float32))
        return client.infer("echo", [tensor], client_timeout=10).as_numpy("Y").tolist()
    finally:
        client.close()


def regions(prefix):
    return {path.name for path in SHARED_MEMORY.glob(f"{prefix}*")}


def test_a_server_serves_and_leaves_nothing(tmp_path, repository):
    said = []
    server = EmbeddedServer(options(tmp_path, repository("echo", GOOD)), on_progress=said.append)
    with server:
        session = server.pid
        assert infer(server.endpoints.grpc) == [2, 4, 6]
        control = {"parley_control_0_0", "parley_control_0_1"}
        assert {usage.name for usage in server.usage()} == {"tritonserver", "echo_0_0", *control}
        assert server.models == ["echo"]
        assert all(usage.rss_bytes > 0 for usage in server.usage())
        assert shared_memory_bytes(server.shm_prefix) >= 1 << 20
        with urlopen(f"http://{server.endpoints.metrics}/metrics", timeout=10) as page:
            assert b"nv_inference_request_success" in page.read()
    assert "loaded echo (1 of 1)" in said
    assert leftovers(session, server.shm_prefix) == ([], [])
    assert not (tmp_path / "state" / "server.json").exists()


def test_a_failed_model_shows_its_own_error(tmp_path, repository):
    folder = repository("echo", GOOD)
    repository("broken", ECHO.format(initialize='raise FileNotFoundError("no weights; run: make weights")'))
    server = EmbeddedServer(options(tmp_path, folder))
    with pytest.raises(
        ModelFailedError, match=r"'broken'(?s:.*)FileNotFoundError: no weights; run"
    ) as caught:
        server.start()
    assert "+---" not in str(caught.value), "Triton's table is not for people"
    assert "broken/1/model.py" in str(caught.value)
    assert not regions(server.shm_prefix), "those of other servers are none of its business"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def (", "SyntaxError"),
        (None, "model file not found"),
        (ECHO.format(initialize="import os; print('going down', flush=True); os.abort()"), "going down"),
    ],
    ids=["syntax", "no file", "process dies"],
)
def test_every_way_to_fail_is_named(tmp_path, repository, code, message):
    folder = repository("broken", code or "")
    if code is None:
        (folder / "broken" / "1" / "model.py").unlink()
    server = EmbeddedServer(options(tmp_path, folder, ready_timeout_s=60))
    with pytest.raises(ModelFailedError, match=message):
        server.start()


def test_a_busy_port_is_named_with_its_holder(tmp_path, repository):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = EmbeddedServer(options(tmp_path, repository("echo", GOOD), http_port=port))
        with pytest.raises(PortBusyError, match=rf"http port 127.0.0.1:{port} .*process {os.getpid()} "):
            server.start()


def test_second_server_of_a_state_folder_is_refused(tmp_path, repository):
    folder = repository("echo", GOOD)
    with (
        EmbeddedServer(options(tmp_path, folder)),
        pytest.raises(AlreadyRunningError, match=f"process {os.getpid()}"),
    ):
        EmbeddedServer(options(tmp_path, folder)).start()
    with EmbeddedServer(options(tmp_path, folder)) as again:
        assert infer(again.endpoints.grpc) == [2, 4, 6]


def test_a_dead_stub_fails_the_canary(tmp_path, server, capsys):
    """Triton itself still calls the model ready."""
    alone = ServerOptions(
        state_dir=tmp_path / "state", load_models=("espeak",), exit_timeout_s=2, **ANY_PORTS
    )
    with EmbeddedServer(alone, limits=None) as victim:
        assert call_canaries(victim.endpoints.grpc, ["espeak"], 10) == ["espeak answered"]
        (stub,) = [usage for usage in victim.usage() if usage.name.startswith("espeak")]
        os.kill(stub.pid, signal.SIGKILL)
        with pytest.raises(CanaryError, match="espeak"):
            call_canaries(victim.endpoints.grpc, ["espeak"], 3)
        assert main(["probe", "--server", victim.endpoints.grpc, "--timeout", "3", "--json"]) == 1
        (result,) = json.loads(capsys.readouterr().out)["models"]
        assert (result["model"], result["ok"]) == ("espeak", False)


def test_the_administration_protocols_are_closed(client):
    with pytest.raises(triton.InferenceServerException, match=r"restricted|expecting"):
        client.get_model_repository_index()
    with pytest.raises(triton.InferenceServerException):
        client.get_system_shared_memory_status()


def test_the_lock_of_the_administration_protocols_has_no_key(server):
    """What is in the command line does not open them, however it is sent."""
    flags = psutil.Process(server.pid).cmdline()
    (lock,) = [flag for flag in flags if flag.startswith("--grpc-restricted-protocol=")]
    name, value = lock_header(lock)
    address = server.endpoints.grpc
    assert b"expecting header" in index_by_http2(address)
    refused = index_by_http2(address, (name, value))
    assert b"espeak" not in refused
    assert b"grpc-status" in refused
    host, _, port = server.endpoints.http.partition(":")
    for line in (f"{name}: {value}", f"{name.replace(':', ' ')}: {value}", f"{name}\r\n : {value}"):
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(
                f"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\n{line}\r\nConnection: close\r\n"
                "Content-Length: 2\r\n\r\n{}".encode()
            )
            assert b"espeak" not in b"".join(iter(lambda: connection.recv(4096), b""))


def test_model_control_from_outside_is_refused(client):
    for change in (client.unload_model, client.load_model):
        with pytest.raises(triton.InferenceServerException, match="restricted"):
            change("espeak")
    assert client.is_model_ready("espeak")


@pytest.mark.parametrize(
    "path",
    [
        "repository/models/espeak/unload",
        "repository/models/espeak/load",
        "repository/index",
        "systemsharedmemory/region/x/register",
        "logging",
        "trace/setting",
    ],
)
def test_administration_is_closed_by_http_too(server, path):
    answer = httpx2.post(f"http://{server.endpoints.http}/v2/{path}", json={}, timeout=10)
    assert answer.status_code == 403
    assert "restricted" in answer.text


CHUNKS = b"1\r\nx\r\n" * 1_000_000 + b"0\r\n\r\n"
"""A body of as many chunks as end Triton before 25.07, where it reads them onto its stack."""


def send_chunks(address, method, path):
    """The status of a request with :data:`CHUNKS`; None: closed without an answer."""
    host, _, port = address.partition(":")
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((host, int(port)), 60) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(head.encode() + CHUNKS)
        try:
            line = connection.recv(4096)
        except ConnectionResetError:
            return None
    return int(line.split()[1]) if line else None


def test_a_body_of_a_million_chunks_ends_no_server(server):
    paths = (
        *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/espeak", "/v2/models/espeak/ready"),
        *("/v2/models/espeak/infer", "/v2/models/espeak/versions/1/infer", "/v2/models/none/infer"),
        *("/v2/models/espeak/generate", "/v2/models/espeak/generate_stream", "/v2/models/espeak/config"),
        *("/v2/models/stats", "/v2/repository/index", "/v2/repository/models/espeak/load", "/v2/logging"),
        *("/v2/trace/setting", "/v2/systemsharedmemory/region/x/register", "/elsewhere"),
    )
    before = server.pid
    asked = [(server.endpoints.http, method, path) for path in paths for method in ("POST", "GET")]
    asked += [(server.endpoints.metrics, method, "/metrics") for method in ("POST", "GET")]
    statuses = {(method, path): send_chunks(address, method, path) for address, method, path in asked}
    assert statuses["POST", "/v2/models/espeak/infer"] == 403
    assert statuses["GET", "/v2/health/ready"] == 200
    assert [one for one, status in statuses.items() if status is None] == []
    assert server.pid == before
    assert psutil.Process(before).is_running()
    assert httpx2.get(f"http://{server.endpoints.http}/v2/health/ready", timeout=10).status_code == 200
    assert call_canaries(server.endpoints.grpc, ["espeak"], 20) == ["espeak answered"]


def test_every_loaded_model_has_a_canary_and_answers(server):
    address = server.endpoints.grpc
    # The index is locked here; the statistics name the loaded models.
    models = profile_models(address, 20)
    assert sorted(models) == sorted(server.models)
    results = ask_canaries(address, models, 20)
    assert {result.model: result.detail for result in results if not result.ok} == {}
    assert not [result.detail for result in results if "has no canary" in result.detail]
    # One after the other, as often as users' sessions would not fit.
    for _ in range(20):
        assert len(call_canaries(address, ["voice_agent", "parakeet_tdt"], 20)) == 2


def test_parley_probe_lists_every_model(server, capsys):
    command = ["probe", "--server", server.endpoints.grpc]
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    assert sorted(model["model"] for model in answer["models"]) == sorted(server.models)
    assert main(command) == 0
    assert f"every model of {server.endpoints.grpc} answers" in " ".join(capsys.readouterr().out.split())


class Launched:
    """``scripts/serve`` as a process."""

    def __init__(self, tmp_path, folder, *flags):
        name = f"test-{os.getpid()}-{tmp_path.name}"
        self.process = subprocess.Popen(
            [
                ROOT / "scripts/serve",
                *(*ON_FREE_PORTS, "--profile", TINY_PROFILE, "--name", name),
                *("--model-repository", folder, *flags),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.state = ROOT / ".server" / name
        self.line = self.process.stdout.readline()
        (self.server,) = psutil.Process(self.process.pid).children()
        self.prefix = f"parley-{Path('/proc/self/ns/pid').stat().st_ino}-{self.process.pid}-"

    def stub(self, model):
        (found,) = [each.pid for each in find_stubs(self.server.pid) if each.model == model]
        return psutil.Process(found)


@pytest.fixture
def launched(tmp_path, repository, request):
    found = Launched(tmp_path, repository("echo", GOOD), *getattr(request, "param", ()))
    yield found
    found.process.kill()
    found.process.communicate(timeout=30)
    for process in session_members(found.server.pid):
        process.kill()
    for path in SHARED_MEMORY.glob(f"{found.prefix}*"):
        path.unlink()
    shutil.rmtree(found.state)


def address_in(line):
    assert re.fullmatch(r"ready grpc=\S+:\d+ http=\S+:\d+ metrics=\S+:\d+\n", line), line
    return line.split()[1].removeprefix("grpc=")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_stops_cleanly_on_a_signal(launched, number):
    assert infer(address_in(launched.line)) == [2, 4, 6]
    assert regions(launched.prefix)
    launched.process.send_signal(number)
    _, said = launched.process.communicate(timeout=30)
    assert launched.process.returncode == 0, said
    assert said.rstrip().endswith("stopped")
    assert leftovers(launched.server.pid, launched.prefix) == ([], [])


def until_answered(address):
    """Ask until the server answers again."""
    end = time.monotonic() + 60
    while True:
        try:
            return infer(address)
        except triton.InferenceServerException:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_the_command_starts_a_server_that_died_again(launched):
    address = address_in(launched.line)
    launched.server.kill()
    launched.server.wait()
    assert until_answered(address) == [2, 4, 6]
    launched.process.send_signal(signal.SIGTERM)
    _, said = launched.process.communicate(timeout=30)
    assert launched.process.returncode == 0
    assert "tritonserver ended with status -9: the server is started again" in said
    assert leftovers(launched.server.pid, launched.prefix) == ([], [])


@pytest.mark.parametrize("launched", [("--no-restart",)], indirect=True)
def test_the_command_fails_at_once_if_it_is_to(launched):
    launched.stub("echo").kill()
    _, said = launched.process.communicate(timeout=60)
    assert launched.process.returncode == 1
    assert "of echo_0_0 died" in said
    assert leftovers(launched.server.pid, launched.prefix) == ([], [])


def test_the_command_loads_a_model_that_died_again(launched):
    address, server = address_in(launched.line), launched.server
    launched.stub("echo").kill()
    assert until_answered(address) == [2, 4, 6]
    assert server.is_running()
    launched.process.send_signal(signal.SIGTERM)
    _, said = launched.process.communicate(timeout=30)
    assert launched.process.returncode == 0
    assert "of echo_0_0 died: echo is loaded again" in said
    assert leftovers(server.pid, launched.prefix) == ([], [])


def test_next_start_clears_the_leftovers_of_a_killed_launcher(tmp_path, launched):
    launched.process.kill()
    launched.process.wait(timeout=10)
    assert launched.server.is_running(), "the server was not asked to stop"
    assert regions(launched.prefix)
    with EmbeddedServer(
        ServerOptions(model_repository=tmp_path / "repository", state_dir=launched.state, **ANY_PORTS)
    ) as again:
        assert infer(again.endpoints.grpc) == [2, 4, 6]
        assert leftovers(launched.server.pid, launched.prefix) == ([], [])


def test_a_signal_while_loading_ends_the_start(tmp_path, repository):
    slow = repository(
        "slow", ECHO.format(initialize="import time; print('loading now', flush=True); time.sleep(60)")
    )
    name = f"test-{os.getpid()}-slow"
    command = [sys.executable, "-m", "parley.launcher", *ON_FREE_PORTS, "--verbose", "--name", name]
    process = subprocess.Popen(
        [*command, "--model-repository", slow],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if "loading now" in line:
            break
    (server,) = psutil.Process(process.pid).children()
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert process.returncode == 130
    assert session_members(server.pid) == []
    shutil.rmtree(ROOT / ".server" / name)


def test_a_wrong_model_name_is_refused_at_once(tmp_path):
    server = EmbeddedServer(ServerOptions(state_dir=tmp_path, load_models=("no_such",), **ANY_PORTS))
    with pytest.raises(LauncherError, match=r"no model no_such; it has .*espeak"):
        server.start()
