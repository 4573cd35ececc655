"""How much a fault may do to a call."""

from __future__ import annotations

from enum import IntEnum


class Effect(IntEnum):
    """What becomes of a call; each contains those before it."""

    NOTHING = 0
    TURN = 1
    """A turn fails; its caller gets an apology, or an error."""
    MOVE = 2
    """It goes on at another server, or in another session of the same."""
    LOSS = 3
    """It ends."""
