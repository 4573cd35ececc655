"""An event loop in a thread whose sockets are in a node."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from cluster.network import NAMESPACES, NetworkError, Node
from parley.errors import DeadlineExceededError

_CLONE_NEWNET = 0x40000000
_END_S = 30.0


class NodeThread:
    """Runs a coroutine in a node, in a thread of this process.

    Args:
        node: Where.
        main: Makes the coroutine; called in the thread.
    """

    def __init__(self, node: Node, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._node = node
        self._main = main
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        self._is_cancelled = False
        self._thread = threading.Thread(target=self._run, name=node.name, daemon=True)

    def start(self) -> None:
        """Start it."""
        self._thread.start()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the thread, between two steps of its tasks; not if it has ended."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    async def join(self, within_s: float) -> None:
        """Wait for its end.

        Raises:
            DeadlineExceededError: it has not ended in time.
            Exception: what the coroutine has raised.
        """
        await asyncio.to_thread(self._thread.join, within_s)
        if self._thread.is_alive():
            raise DeadlineExceededError(f"{self._node.name} has not ended within {within_s:g} s")
        if self._failure is not None:
            raise self._failure

    def cancel(self) -> None:
        """Cancel the coroutine, and wait for its end; its failure is ignored."""
        self._is_cancelled = True
        self.call(lambda: self._task.cancel() if self._task is not None else None)
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            _enter(self._node.namespace)
            asyncio.run(self._supervised())
        except BaseException as error:  # noqa: BLE001 - `join` raises it
            self._failure = error

    async def _supervised(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if not self._is_cancelled:
            await self._main()


def _enter(namespace: str) -> None:
    """Move this thread, and those that it starts, into a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(Path(NAMESPACES, namespace), os.O_RDONLY)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise NetworkError(f"{namespace} cannot be entered: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)
