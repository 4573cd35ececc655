"""A plain ``tritonserver`` with the probes' models, without the launcher's supervision."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

import tritonclient.grpc as triton
from harness.servers import Program, ThisMachine

from parley.errors import DeadlineExceededError
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
_CRASH_S, _LOOK_S = 1.0, 0.05


class ProbedServer:
    """One server at a time; a probe may have ended it, and the next one starts another."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        """Prepare."""
        self._installation = installation
        self._folder = folder
        self._machine = ThisMachine("triton")
        self._program = Program(self._machine, "triton", folder)
        self._prefix = new_prefix()
        self.address = ""
        """``host:port`` of gRPC."""

    def has_ended(self) -> bool:
        """Whether the server ends by itself, as after a crash; waits for a moment."""
        end = time.monotonic() + _CRASH_S
        while self._program.pid and time.monotonic() < end:
            time.sleep(_LOOK_S)
        return self._program.status is not None

    def start(self) -> str:
        """Start a server unless one runs; returns its version.

        Raises:
            ParleyError: it ended, or is not ready in time.
        """
        if not self._program.pid:
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
        self.address = f"127.0.0.1:{options.grpc_port}"
        with triton.InferenceServerClient(self.address) as client:
            ready = self._program.launch(
                command, lambda: _is_ready(client), ready_s=_START_S, environment=environment
            )
            asyncio.run(ready)

    def kill_model(self, model: str) -> None:
        """Kill the process of a model."""
        for stub in find_stubs(self._program.pid):
            if stub.model == model:
                os.kill(stub.pid, 9)

    def stop(self) -> None:
        """End the server and its models; does nothing when none runs."""
        if not self._program.session:
            return
        with suppress(DeadlineExceededError):
            asyncio.run(self._program.stop(_STOP_S))
        kill_session(self._program.session)
        self._machine.kill()
        remove_left(self._prefix)


def _is_ready(client: triton.InferenceServerClient) -> bool:
    try:
        return bool(client.is_server_ready())
    except triton.InferenceServerException:
        return False
