"""Random numbers and the time of day in a call, which are the same when the call is replayed."""

from __future__ import annotations

import random
import secrets
from contextvars import ContextVar
from datetime import UTC, datetime


class Chance:
    """The random numbers of one call, from ``seed``, and its time of day, which is always ``now``."""

    def __init__(self, seed: int, now: datetime) -> None:
        self.random = random.Random(seed)
        self.now = now


current_chance: ContextVar[Chance | None] = ContextVar("chance", default=None)
"""Of the task under way; None: real chance, and the time of day."""


def random_hex(size: int) -> str:
    """``size`` random bytes in hexadecimal digits."""
    chance = current_chance.get()
    return secrets.token_hex(size) if chance is None else chance.random.randbytes(size).hex()


def random_between(least: float, most: float) -> float:
    """A number from this range, each as likely."""
    chance = current_chance.get()
    return (random if chance is None else chance.random).uniform(least, most)


def calendar_time() -> datetime:
    """The time of day, in UTC."""
    chance = current_chance.get()
    return datetime.now(UTC) if chance is None else chance.now
