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

    def finish(self, last: ServerEvent | None = None) -> None:
        """Nothing follows; ``last`` is sent together with the end.

        A client may leave as soon as it has the last event. If Triton 24.10 learns of that while the end
        still follows by itself, its gRPC front end may use the memory of this stream for another one.
        """
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the client has gone away."""
        ...
