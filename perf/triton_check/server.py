"""A plain ``tritonserver`` with the probes' models, without the launcher's supervision."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import tritonclient.grpc as triton

from parley.launcher.cleanup import new_prefix, remove_left
from parley.launcher.command import (
    ADMIN_PROTOCOLS,
    NO_KEY,
    Installation,
    assemble_backend,
    build_environment,
)
from parley.launcher.options import GPU_PROFILE, ServerOptions, choose_ports
from parley.launcher.processes import find_stubs, kill_session

_MODELS = Path(__file__).with_name("models")
LOCK = f"--grpc-restricted-protocol={ADMIN_PROTOCOLS}:{NO_KEY}"
"""That of the launcher."""
_START_S = 120.0
_STOP_S = 20.0


class StartError(Exception):
    """The server did not become ready; the message has the end of its log."""


class ProbedServer:
    """One server at a time; a probe may have ended it, and the next one starts another."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        """Prepare.

        Args:
            installation: the Triton.
            folder: for the log and links; not shared.
        """
        self._installation = installation
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix = new_prefix()
        self.address = ""
        """``host:port`` of gRPC."""

    @property
    def log(self) -> Path:
        """Of all servers, one after the other."""
        return self._folder / "triton.log"

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def has_ended(self) -> bool:
        """Whether the server ends by itself, as after a crash; waits for a moment."""
        if self._process is None:
            return False
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        return self._process.poll() is not None

    def start(self) -> str:
        """Start a server unless one runs; returns its version.

        Raises:
            StartError: it ended, or is not ready in time.
        """
        if not self.is_alive():
            self.stop()
            self._launch()
        with triton.InferenceServerClient(self.address) as client:
            return str(client.get_server_metadata(client_timeout=_START_S).version)

    def _launch(self) -> None:
        options = choose_ports(
            ServerOptions(
                model_repository=_MODELS,
                profile=GPU_PROFILE,  # whose configurations are config.pbtxt
                state_dir=self._folder,
                grpc_port=0,
                http_port=0,
                metrics_port=0,
            )
        )
        backends = assemble_backend(self._installation, self._folder / "backends")
        command = [
            str(self._installation.tritonserver),
            f"--model-repository={_MODELS}",
            f"--backend-directory={backends}",
            f"--backend-config=python,shm-region-prefix-name={self._prefix}",
            f"--backend-config=python,shm-default-byte-size={options.shm_region_bytes}",
            f"--grpc-port={options.grpc_port}",
            "--grpc-address=127.0.0.1",
            LOCK,
            "--allow-http=false",
            "--allow-metrics=false",
            "--exit-timeout-secs=5",
        ]
        environment = build_environment(self._installation, options, os.environ)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.address = f"127.0.0.1:{options.grpc_port}"
        end = time.monotonic() + _START_S
        with triton.InferenceServerClient(self.address) as client:
            while not _is_ready(client):
                if not self.is_alive() or time.monotonic() > end:
                    said = self.log.read_text(encoding="utf-8", errors="replace")[-2_000:]
                    raise StartError(f"tritonserver did not become ready: {said}")
                time.sleep(0.1)

    def kill_model(self, model: str) -> None:
        """Kill the process of a model."""
        assert self._process is not None
        for stub in find_stubs(self._process.pid):
            if stub.model == model:
                os.kill(stub.pid, 9)

    def stop(self) -> None:
        """End the server and its models; does nothing when none runs."""
        if self._process is None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        kill_session(self._process.pid)
        self._process.wait()
        remove_left(self._prefix)
        self._process = None


def _is_ready(client: triton.InferenceServerClient) -> bool:
    try:
        return bool(client.is_server_ready())
    except triton.InferenceServerException:
        return False
