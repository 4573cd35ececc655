"""The way from a session to its client."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.protocol import ServerEvent

Reason: TypeAlias = Literal["ended", "hangup", "disconnected", "idle", "silence", "shutdown", "failed"]
"""Why a session ended; see :class:`parley.protocol.Closed`."""


class Outlet(Protocol):
    """Answers one request of a client; the one with START belongs to its session."""

    def send(self, event: ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        """Send one event; never waits for the client."""
        ...

    def finish(self) -> None:
        """Nothing follows."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the client has gone away."""
        ...
