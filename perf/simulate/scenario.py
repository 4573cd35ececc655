"""Scenarios: what a caller does, how tools behave, and what is to come of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from parley import protocol
from simulate.cues import Cue
from simulate.sentence import Sentence
from simulate.tool_scripts import ToolScript

Kind = Literal["say", "file", "backchannel", "sound", "text", "dtmf", "quiet"]
Answered = bool | Literal["maybe"]
Alternatives: TypeAlias = tuple[str, ...]
"""Wordings of the same thing, of which one is enough."""


class Background(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Noise that goes on."""

    sound: str
    snr_db: float = 20.0
    """How far it is below the caller's speech."""


class Echo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The agent's voice in the caller's microphone."""

    delay_ms: int = 120
    attenuation_db: float = 30.0


class Caller(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who calls, and from where."""

    voice: str = "woman-1"
    rate: float = 1.0
    """Speed of speech; 1.2 is a fifth faster."""
    level_db: float = -26.0
    """RMS of the speech below full scale."""
    background: Background | None = None
    echo: Echo | None = None


@dataclass(frozen=True)
class ExpectedCall:
    """A tool call that has to be made."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Exchange:
    """One thing that the caller does, and what is to come of it."""

    index: int
    kind: Kind
    cue: Cue
    sentence: Sentence | None = None
    """Of ``say`` and ``backchannel``."""
    content: str = ""
    """Name of the sound, text or keys that are sent."""
    file: Path | None = None
    words: str = ""
    """Everything that is said, in lower case."""
    part: tuple[int, int] | None = None
    """Of ``file``: from and to (milliseconds); None: all of it."""
    cuts: tuple[tuple[int, int], ...] = ()
    quiet_ms: int = 0
    voice: str = "woman-1"
    rate: float = 1.0
    gain_db: float = 0.0
    background: Background | None = None
    """From this exchange on; None: as before."""
    heard: tuple[Alternatives, ...] = ()
    tools: tuple[ExpectedCall, ...] = ()
    answer: tuple[Alternatives, ...] = ()
    answered: Answered = True
    interrupts: bool = False

    @property
    def is_turn(self) -> bool:
        """Whether the caller wants to say something by it."""
        return self.kind in ("say", "file", "text", "dtmf")

    @property
    def is_spoken(self) -> bool:
        """Whether a turn is spoken, so that it has an end of speech."""
        return self.kind in ("say", "file")

    @property
    def pauses(self) -> tuple[int, ...]:
        """Silences inside it (milliseconds)."""
        if self.kind == "file":
            return tuple(length for _, length in self.cuts)
        return self.sentence.pauses if self.sentence is not None else ()


@dataclass(frozen=True)
class Scenario:
    """One call."""

    name: str
    title: str
    start: protocol.Start
    """Without tools."""
    caller: Caller
    tools: tuple[ToolScript, ...]
    exchanges: tuple[Exchange, ...]
    tags: frozenset[str] = field(default_factory=frozenset)

    @property
    def has_pauses(self) -> bool:
        """Whether a caller pauses inside a sentence."""
        return any(exchange.pauses for exchange in self.exchanges)
