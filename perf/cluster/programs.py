"""A program in a node: started until it is ready, and ended."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cluster.network import Node
from parley.errors import DeadlineExceededError, ParleyError

_POLL_S = 0.1


class Program:
    """One program at a time in a node, which ends with it.

    Args:
        node: Where it runs.
        name: Of its log.
        folder: For its log, which has all of its starts.
    """

    def __init__(self, node: Node, name: str, folder: Path) -> None:
        self.node = node
        self.log_path = folder / f"{name}.log"
        self._name = name
        self._log_begin = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has been started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of its process, which is the leader of its session; 0: it does not run."""
        return self._process.pid if self._process is not None and self.is_running else 0

    async def start(
        self,
        command: Sequence[str | Path],
        is_ready: Callable[[], bool],
        *,
        ready_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it, and wait until it is ready.

        Args:
            command: The program and its arguments.
            is_ready: Asked again and again.
            ready_s: Limit (seconds).
            environment: Beside the own one.

        Raises:
            ParleyError: it ended before.
            DeadlineExceededError: it was not ready in time.
        """
        with self.log_path.open("ab") as log:
            self._log_begin = log.tell()
            self._process = self.node.start(command, log=log, environment=environment)
        try:
            async with asyncio.timeout(ready_s):
                while not is_ready():
                    if self._process.poll() is not None:
                        raise ParleyError(f"{self._name} has ended: {self._last_words()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            late = f"{self._name} was not ready within {ready_s:g} s: {self._last_words()}"
            raise DeadlineExceededError(late) from error

    def has_logged(self, text: bytes) -> bool:
        """Whether a text is in its log since it was started last."""
        return text in self.log_path.read_bytes()[self._log_begin :]

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens where it does not run."""
        if self._process is not None and self.is_running:
            self._process.send_signal(number)

    async def stop(self, within_s: float) -> None:
        """End it politely (SIGTERM).

        Raises:
            DeadlineExceededError: it has not ended in time.
        """
        if self._process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._process.wait, within_s)
        except subprocess.TimeoutExpired as error:
            raise DeadlineExceededError(f"{self._name} has not ended within {within_s:g} s") from error

    def kill(self) -> None:
        """End everything in the node at once (SIGKILL)."""
        self.node.kill()

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        return f"{self.log_path}: {' / '.join(lines[-3:])}"
