"""What callers of a profile have in common: their scenarios, voices and goals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parley_testing.voices import ESPEAK, Cast, cast_of

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class World:
    """All that callers of a profile have in common."""

    scenarios: Path
    cast: Cast
    latency_ms: tuple[float, float]
    """From the end of speech to the first audio, at most: p50 and p95."""


def world_of(profile: str) -> World:
    """Only the tiny models need callers who say what they have learned."""
    if (cast := cast_of(profile)) is ESPEAK:
        return World(_HERE / "scenarios", cast, (450.0, 700.0))
    return World(_HERE / "scenarios_open", cast, (700.0, 1_100.0))
