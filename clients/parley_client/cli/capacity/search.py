"""The search for the most calls that a server holds: by doubling, and then by halving the gap."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What was found out about a level."""

    HELD = "held"
    BROKEN = "broken"
    UNSURE = "unsure"
    """The interval of the percentile had the limit in it to the end."""


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    held: int
    """The most calls of a level that was held, below all that were not; 0: not even one call."""
    is_bounded: bool
    """Whether a level above was measured and not held; False: there may be room for more."""


async def find_capacity(judge: Callable[[int], Awaitable[Verdict]], *, start: int, most: int) -> Found:
    """Double the calls until a level is not held, then halve the gap between the two until it is closed.

    A level of which the verdict is unsure is not held. Every verdict is taken as it is, and no level is held
    twice: the search ends after at most twice the logarithm of ``most`` levels, whatever the noise does.
    """
    levels: list[tuple[int, Verdict]] = []
    held, broken = 0, most + 1
    calls = min(start, most)
    while broken - held > 1:
        verdict = await judge(calls)
        levels.append((calls, verdict))
        if verdict == Verdict.HELD:
            held = calls
        else:
            broken = calls
        calls = min(2 * held, most) if broken > most else (held + broken) // 2
    return summarize(levels)


def summarize(levels: Sequence[tuple[int, Verdict]]) -> Found:
    """What the levels so far say; also of a search that was interrupted."""
    failed = min((calls for calls, verdict in levels if verdict != Verdict.HELD), default=None)
    held = [
        calls for calls, verdict in levels if verdict == Verdict.HELD and (failed is None or calls < failed)
    ]
    return Found(max(held, default=0), is_bounded=failed is not None)
