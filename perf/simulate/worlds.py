"""What goes with a profile: its scenarios, who calls, and how fast it is meant to answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parley.launcher.options import TINY_PROFILE
from simulate.casts import ESPEAK, KOKORO, Cast

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class World:
    """All that callers of a profile have in common."""

    scenarios: Path
    cast: Cast
    latency_ms: tuple[float, float]
    """From the end of speech to the first audio, at most: p50 and p95."""


TINY = World(_HERE / "scenarios", ESPEAK, (450.0, 700.0))
OPEN = World(_HERE / "scenarios_open", KOKORO, (700.0, 1_100.0))


def world_of(profile: str) -> World:
    """Only the tiny models need callers who say what they have learned."""
    return TINY if profile == TINY_PROFILE else OPEN
