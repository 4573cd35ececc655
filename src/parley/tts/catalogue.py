"""What is known of a voice before anybody hears it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ENGLISH = ("en", "en-us", "en-gb")
"""Languages of a synthesizer that can pronounce English alone."""

Gender: TypeAlias = Literal["", "female", "male"]


@dataclass(frozen=True)
class KnownVoice:
    """A voice that a synthesizer always has."""

    name: str
    languages: tuple[str, ...]
    """As in ``en`` or ``en-us``."""
    gender: Gender = ""
    """Empty: not said."""
    description: str = ""
    """For people."""
