"""A plain tritonserver, without the launcher, on models most of which have no weights."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
import tritonclient.grpc as triton

from parley.canaries.models import CANARIES, CanaryError
from parley.launcher.cleanup import new_prefix, remove_regions
from parley.launcher.command import assemble_backend, build_environment, find_installation
from parley.launcher.options import ROOT, ServerOptions, choose_ports
from parley.runtime.parameters import LOADED_MODELS_VARIABLE

START_S = 300.0
MODELS = ("espeak", "kokoro", "parakeet_tdt", "qwen3", "t3", "voice_agent")
"""Of the profile gpu. Those that need a GPU to be loaded at all are left out."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Its gRPC address and its log."""
    folder = tmp_path_factory.mktemp("plain")
    repository = folder / "model_repository"
    repository.mkdir()
    (folder / "weights").mkdir()
    for model in MODELS:
        (repository / model).symlink_to(ROOT / "model_repository" / model)
    options = choose_ports(ServerOptions(state_dir=folder, grpc_port=0, http_port=0, metrics_port=0))
    installation = find_installation()
    environment = build_environment(installation, options, os.environ)
    del environment[LOADED_MODELS_VARIABLE]
    # As in a server that does not say its version.
    environment |= {"PARLEY_MODELS_DIR": str(folder / "weights"), "TRITON_SERVER_VERSION": ""}
    environment["PARLEY_VOICE_AGENT_ASR"] = "parakeet_tdt"  # that of the profile is on a GPU
    prefix = new_prefix()
    command = [
        str(installation.tritonserver),
        f"--model-repository={repository}",
        f"--grpc-port={options.grpc_port}",
        f"--http-port={options.http_port}",
        f"--metrics-port={options.metrics_port}",
        # Where Triton is not installed at its usual place, and for the test's own shared memory.
        f"--backend-directory={assemble_backend(installation, folder / 'backends')}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
    ]
    log = folder / "triton.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    address = f"127.0.0.1:{options.grpc_port}"
    try:
        with triton.InferenceServerClient(address) as client:
            end = time.monotonic() + START_S
            while not _is_ready(client):
                assert process.poll() is None, log.read_text()[-4000:]
                assert time.monotonic() < end, log.read_text()[-4000:]
                time.sleep(0.2)
        yield address, log
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        remove_regions(prefix)


def _is_ready(client):
    try:
        return client.is_server_ready()
    except triton.InferenceServerException:
        return False


def test_models_without_weights_do_not_stop_the_others(server):
    address, log = server
    with triton.InferenceServerClient(address) as client:
        assert all(client.is_model_ready(model) for model in MODELS)
    assert CANARIES["espeak"](address, 60.0)
    for model in ("kokoro", "qwen3", "t3", "parakeet_tdt"):
        with pytest.raises(CanaryError, match=f"{model} has no weights on this server"):
            CANARIES[model](address, 60.0)
    assert "every request is refused: weights of model qwen3" in log.read_text()


def test_the_agent_says_which_engine_is_absent(server):
    address, log = server
    with pytest.raises(CanaryError, match=r"weights_not_found.*parakeet_tdt has no weights on this server"):
        CANARIES["voice_agent"](address, 60.0)
    said = log.read_text()
    for model in ("parakeet_tdt", "qwen3"):
        assert f"sessions are refused, because {model} cannot be used: weights of model {model}" in said
    assert "make fetch MODEL=Qwen3-4B-AWQ" in said
    assert "Triton's version is unknown" in said
