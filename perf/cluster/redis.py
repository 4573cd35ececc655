"""A Redis in a node: what gateways share."""

from __future__ import annotations

import shutil
import socket
from contextlib import suppress
from pathlib import Path

from cluster.network import NetworkError, Node
from cluster.programs import Program

_PORT = 6379
_READY_S = 15.0
_CONNECT_S = 1.0


class Redis:
    """A redis-server that keeps nothing on a disk.

    Args:
        node: Where it runs.
        folder: For its log.

    Raises:
        NetworkError: there is no redis-server.
    """

    def __init__(self, node: Node, folder: Path) -> None:
        if shutil.which("redis-server") is None:
            raise NetworkError("`redis-server` is missing. Run, as root on Debian: scripts/setup --cluster")
        self.node = node
        self.url = f"redis://{node.address}:{_PORT}/0"
        self._folder = folder
        self._program = Program(node, node.name, folder)

    async def start(self) -> None:
        """Start it, empty, and wait until it answers.

        Raises:
            ParleyError: it ended before.
            DeadlineExceededError: not in time.
        """
        options = {
            "bind": self.node.address,
            "port": str(_PORT),
            "protected-mode": "no",
            "save": "",
            "appendonly": "no",
            "dir": str(self._folder),
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        await self._program.start(["redis-server", *arguments], self.answers, ready_s=_READY_S)

    def answers(self) -> bool:
        """Whether it answers."""
        with suppress(OSError):
            return self._ask(b"PING").startswith(b"+PONG")
        return False

    def keys(self) -> int:
        """How many keys there are.

        Raises:
            OSError: it does not answer.
        """
        return int(self._ask(b"DBSIZE").strip().removeprefix(b":"))

    def _ask(self, command: bytes) -> bytes:
        with socket.create_connection((self.node.address, _PORT), _CONNECT_S) as connection:
            connection.sendall(command + b"\r\n")
            return connection.recv(64)

    def kill(self) -> None:
        """End it at once (SIGKILL); what it has kept is gone."""
        self._program.kill()
