"""Servers in the nodes of a :class:`cluster.network.Network`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.network import Node
from cluster.programs import Program
from parley.errors import DeadlineExceededError
from parley.launcher.options import ROOT

GRPC_PORT, _HTTP_PORT, METRICS_PORT = 8001, 8000, 8002
_READY_S = 180.0
_STOP_S = 60.0
_READY = b"ready grpc="


class Worker:
    """A Triton with the model repository, under the launcher's supervision.

    Args:
        node: Where it runs.
        profile: Of its models.
        folder: For its log.
        wrapper: A program that starts it, with its command as arguments.
        environment: Beside the own one.
        ready_s: The longest time that it may take to start (seconds).
    """

    def __init__(
        self,
        node: Node,
        profile: str,
        folder: Path,
        *,
        wrapper: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        ready_s: float = _READY_S,
    ) -> None:
        self.node = node
        self.address = f"{node.address}:{GRPC_PORT}"
        """Of its gRPC endpoint."""
        self.metrics = f"{node.address}:{METRICS_PORT}"
        """Of its metrics."""
        self.state_name = f"cluster-{node.name}"
        """Folder of its state in ``.server``."""
        self.session_log = ROOT / ".server" / self.state_name / "triton.log"
        """Where it says which sessions it has; begins anew with each start."""
        self._profile = profile
        self._wrapper = wrapper
        self._environment = environment
        self._ready_s = ready_s
        self._program = Program(node, node.name, folder)

    async def start(self) -> None:
        """Start it, and wait until its models have answered.

        Raises:
            ParleyError: it ended before.
            DeadlineExceededError: not in time.
        """
        command: list[str | Path] = [ROOT / "scripts" / "serve", "--profile", self._profile, "--no-fetch"]
        ports = ["--grpc-port", str(GRPC_PORT), "--http-port", str(_HTTP_PORT)]
        ports += ["--metrics-port", str(METRICS_PORT)]
        listeners = ("--grpc-address", "--http-address", "--metrics-address")
        addresses = [part for listener in listeners for part in (listener, self.node.address)]
        await self._program.start(
            [*self._wrapper, *command, "--name", self.state_name, *ports, *addresses],
            lambda: self._program.has_logged(_READY),
            ready_s=self._ready_s,
            environment=self._environment,
        )

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._program.is_running

    @property
    def launcher(self) -> int:
        """Process number of the launcher; 0: it does not run."""
        return self._program.pid

    def kill(self) -> None:
        """End all of its processes at once (SIGKILL)."""
        self._program.kill()

    async def stop(self) -> None:
        """End it politely (SIGTERM).

        Raises:
            DeadlineExceededError: it has not ended within a minute.
        """
        await self._program.stop(_STOP_S)

    async def drain(self, wait_s: int, deadline_s: float = 60.0) -> None:
        """Ask its calls to move, and wait until they have.

        Args:
            wait_s: Limit (seconds).
            deadline_s: After it calls move wherever they are (seconds).

        Raises:
            DeadlineExceededError: some have not.
        """
        command = [ROOT / ".venv" / "bin" / "parley", "drain", "--name", self.state_name]
        times = ["--deadline", f"{deadline_s:g}", "--wait", wait_s]
        process = await asyncio.create_subprocess_exec(
            *map(str, [*command, *times]), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            if await process.wait():
                raise DeadlineExceededError(f"{self.node.name} has calls after {wait_s} s")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
