"""Servers in the nodes of a :class:`cluster.network.Network`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path
from typing import IO

from cluster.network import Node
from parley.errors import DeadlineExceededError, ParleyError
from parley.launcher.options import ROOT

_GRPC_PORT, _HTTP_PORT, METRICS_PORT = 8001, 8000, 8002
_READY_S = 180.0
_STOP_S = 60.0
_POLL_S = 0.1
_READY = b"ready grpc="


class Worker:
    """A Triton with the model repository, under the launcher's supervision.

    Args:
        node: Where it runs.
        profile: Of its models.
        folder: For its log.
    """

    def __init__(self, node: Node, profile: str, folder: Path) -> None:
        self.node = node
        self.address = f"{node.address}:{_GRPC_PORT}"
        """Of its gRPC endpoint."""
        self.state_name = f"cluster-{node.name}"
        """Folder of its state in ``.server``."""
        self._profile = profile
        self._log_path = folder / f"{node.name}.log"
        self._log: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it, and wait until its models have answered.

        Raises:
            ParleyError: it ended before.
            DeadlineExceededError: not within three minutes.
        """
        if self._log is not None:
            self._log.close()
        self._log = self._log_path.open("wb")
        command = [ROOT / "scripts" / "serve", "--profile", self._profile, "--no-fetch"]
        ports = ["--grpc-port", _GRPC_PORT, "--http-port", _HTTP_PORT, "--metrics-port", METRICS_PORT]
        addresses = ["--grpc-address", self.node.address, "--http-address", self.node.address]
        self._process = self.node.start(
            [*command, "--name", self.state_name, *map(str, ports), *addresses], log=self._log
        )
        try:
            async with asyncio.timeout(_READY_S):
                while _READY not in self._log_path.read_bytes():
                    if self._process.poll() is not None:
                        raise ParleyError(f"{self.node.name} has ended: see {self._log_path}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise DeadlineExceededError(f"{self.node.name} was not ready within {_READY_S:g} s") from error

    def kill(self) -> None:
        """End all of its processes at once (SIGKILL)."""
        self.node.kill()

    async def stop(self) -> None:
        """End it politely (SIGTERM).

        Raises:
            DeadlineExceededError: it has not ended within a minute.
        """
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._process.wait, _STOP_S)
        except subprocess.TimeoutExpired as error:
            raise DeadlineExceededError(f"{self.node.name} has not ended within {_STOP_S:g} s") from error

    async def drain(self, wait_s: int) -> None:
        """Ask its calls to move, and wait until they have.

        Raises:
            DeadlineExceededError: some have not.
        """
        command = [ROOT / ".venv" / "bin" / "parley", "drain", "--name", self.state_name, "--wait", wait_s]
        process = await asyncio.create_subprocess_exec(*map(str, command), stdout=self._log)
        if await process.wait():
            raise DeadlineExceededError(f"{self.node.name} has calls after {wait_s} s")
