"""What the translator wants of the agent; :mod:`~parley_gateway.doors.realtime.uplink` passes it on."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from parley import protocol


class Port(Protocol):
    """The way to the agent: nothing waits, and everything arrives in the order of the calls."""

    def open(self, start: protocol.Start) -> None:
        """Open the call; called once, before anything else."""
        ...

    def update(self, update: protocol.Update) -> None:
        """Change the session."""
        ...

    def audio(self, samples: NDArray[np.int16]) -> None:
        """The user's audio: mono, 16 kHz, int16 [n]."""
        ...

    def commit(self) -> None:
        """The user's turn is over."""
        ...

    def discard(self) -> None:
        """Forget the user's turn that is not over."""
        ...

    def respond(self, system_prompt: str | None, use_tools: bool) -> None:
        """Answer what the history holds."""
        ...

    def remember(self, role: Literal["user", "assistant", "system"], text: str) -> None:
        """Add to the history."""
        ...

    def answer_tool(self, call_id: str, output: Any) -> None:
        """What a tool returned."""
        ...

    def interrupt(self, response_id: str | None) -> None:
        """Stop speaking; None: whatever is said."""
        ...

    def truncate(self, response_id: str, played_ms: int) -> None:
        """Only so much of it was heard."""
        ...

    def played(self, response_id: str, played_ms: int) -> None:
        """So much of it has been heard so far."""
        ...
