"""What a call needs of the network: one ordered stream of frames each way.

:mod:`parley_client.triton` implements it over gRPC; tests use a fake.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Frame:
    """One request: at most one message and one piece of audio."""

    request_id: str
    message: bytes = b""
    """JSON of a client message; empty: none."""
    audio: bytes = b""
    """Mono PCM16 little endian, 16 kHz; empty: none."""
    start: bool = False
    end: bool = False


@dataclass(frozen=True, slots=True)
class ServerReply:
    """One response."""

    request_id: str = ""
    event: bytes = b""
    """JSON of a server event; empty: only an acknowledgement."""
    audio: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))
    """Samples of an ``audio`` event, shape [n]."""
    final: bool = False
    """No further response to ``request_id`` follows."""
    error: str = ""
    """The server's error message for this request; empty: none."""


class Stream(Protocol):
    """An open stream. Failures are raised as :class:`parley.errors.ParleyError`."""

    async def send(self, frame: Frame) -> None:
        """Hand a frame to the network; waits while the network takes no more."""
        ...

    async def finish(self) -> None:
        """Say that no frame follows."""
        ...

    async def receive(self) -> ServerReply | None:
        """The next reply. None: the server has ended the stream."""
        ...

    def cancel(self) -> None:
        """Drop the stream at once; safe to call twice."""
        ...


class Transport(Protocol):
    """Opens streams to one server."""

    async def open(self, call_id: str, timeout_s: float) -> Stream:
        """A stream for the call ``call_id``.

        Raises:
            ConnectError: the server cannot be reached within ``timeout_s``.
        """
        ...

    async def close(self) -> None:
        """Drop the connection and everything on it."""
        ...
