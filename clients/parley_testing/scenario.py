"""Scenarios: what a caller does, how tools behave, and what is to come of it."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec

from parley import protocol
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.tools import ToolOptions, ToolTable

_CUE = re.compile(r"(idle|agent|caller)\+(\d{1,6})")
FILLERS = frozenset(("um", "uh", "er", "hm", "well", "so"))
LONGEST_PAUSE_MS = 10_000
MOST_LOSS = 0.5
_SENTENCE_PART = re.compile(r"\[([^\[\]]*)\]|([^\s\[\]]+)")
_DEMO = {tool.name: tool for tool in ToolTable(DEMO_TOOLS).definitions}
DEMO_NAMES = tuple(_DEMO)
_TIMEOUT_S = 120.0
_ANY: dict[str, Any] = {"type": "object"}


class ScenarioError(ValueError):
    """A scenario is missing, not valid, or asks for something that is not there."""


class RecordingNotFoundError(ScenarioError):
    """A recording that is not part of the project has not been brought yet."""


After = Literal["idle", "agent", "caller"]


@dataclass(frozen=True)
class StartCue:
    """A moment.

    ``idle``: this long after both sides fell silent. ``agent``: when this much of the answer has been
    heard. ``caller``: this long after the end of the exchange before, whatever the agent does.
    """

    after: After
    ms: int


def parse_cue(written: str) -> StartCue:
    """Read ``agent+1500``.

    Raises:
        ScenarioError: not such a moment.
    """
    match = _CUE.fullmatch(written)
    if match is None:
        raise ScenarioError(f"at = {written!r} is not idle+MS, agent+MS or caller+MS")
    return StartCue(cast("After", match[1]), int(match[2]))


@dataclass(frozen=True)
class Pause:
    """Silence inside a sentence."""

    ms: int


@dataclass(frozen=True)
class FillerWord:
    """A word that only fills a pause; it is spoken by itself."""

    word: str


@dataclass(frozen=True)
class InnerSound:
    """A sound of :mod:`parley_testing.sounds`."""

    name: str


Insert = Pause | FillerWord | InnerSound


@dataclass(frozen=True)
class Sentence:
    """Words, and what is put between them."""

    words: tuple[str, ...]
    inserts: tuple[tuple[int, Insert], ...] = ()
    """Each with the index of the word that it comes before; the number of words: at the end."""

    @property
    def text(self) -> str:
        """What is synthesised as one sentence."""
        return " ".join(self.words)

    @property
    def pauses(self) -> tuple[int, ...]:
        """Lengths of the silences between the sentence's first sound and its last (milliseconds)."""
        return tuple(insert.ms for _, insert in self.inserts if isinstance(insert, Pause))


def parse_sentence(written: str, sounds: frozenset[str]) -> Sentence:
    """Read a sentence.

    Raises:
        ScenarioError: no words, or something in brackets that is none of the above.
    """
    words: list[str] = []
    inserts: list[tuple[int, Insert]] = []
    if _SENTENCE_PART.sub("", written).strip():
        raise ScenarioError(f"{written!r}: a bracket is not closed")
    for match in _SENTENCE_PART.finditer(written):
        inner, word = match.groups()
        if word is not None:
            words.append(word)
        else:
            inserts.append((len(words), _insert(inner.strip(), written, sounds)))
    if not words:
        raise ScenarioError(f"{written!r}: no words")
    if inserts and isinstance(inserts[0][1], Pause) and inserts[0][0] == 0:
        raise ScenarioError(f"{written!r}: begins with a pause; say when it begins with `at` instead")
    if inserts and isinstance(inserts[-1][1], Pause) and inserts[-1][0] == len(words):
        raise ScenarioError(f"{written!r}: ends with a pause, which is not audible")
    return Sentence(tuple(words), tuple(inserts))


def _insert(inner: str, written: str, sounds: frozenset[str]) -> Insert:
    if inner.isdecimal():
        if not 0 < int(inner) <= LONGEST_PAUSE_MS:
            raise ScenarioError(f"{written!r}: a pause has 1 to {LONGEST_PAUSE_MS} ms, not {inner}")
        return Pause(int(inner))
    if inner in FILLERS:
        return FillerWord(inner)
    if inner in sounds:
        return InnerSound(inner)
    known = ", ".join(sorted(FILLERS | sounds))
    raise ScenarioError(f"{written!r}: [{inner}] is neither milliseconds nor one of {known}")


_OUTPUTS: dict[str, Any] = {
    "get_weather": {"temperature": 8, "sky": "foggy"},
    "get_time": {"time": "15:52"},
    "set_timer": {"ok": True},
}


class ToolScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool, and what becomes of every call of it."""

    name: str
    description: str = ""
    """Empty: that of the client's sample tool of this name."""
    parameters: dict[str, Any] | None = None
    """JSON schema; None: that of the sample tool."""
    output: Any = None
    """None: the sample's."""
    error: str | None = None
    """The call fails with this."""
    delay_ms: int = 0

    @classmethod
    def demo(cls, name: str) -> ToolScript:
        """A sample tool, with an answer that never changes.

        Raises:
            ScenarioError: there is none of this name.
        """
        if name not in _DEMO:
            raise ScenarioError(f"no tool {name!r}: give it a [[tool]], or take one of {', '.join(_DEMO)}")
        return cls(name=name)

    @property
    def definition(self) -> protocol.Tool:
        """For the language model; without a description it is that of the server's tool of this name."""
        sample = _DEMO.get(self.name)
        description = self.description or (sample.description if sample else "")
        parameters = self.parameters or (sample.parameters if sample else None)
        return protocol.Tool(name=self.name, description=description, parameters=parameters or {})

    async def __call__(self, **_arguments: Any) -> Any:
        """Behave."""
        await asyncio.sleep(self.delay_ms / 1000)
        if self.error is not None:
            raise RuntimeError(self.error)
        return _OUTPUTS.get(self.name) if self.output is None else self.output


def make_table(scripts: tuple[ToolScript, ...]) -> ToolTable:
    """The tools of one call."""
    table = ToolTable()
    for script in scripts:
        # The table looks at what it is given; a bound method says by itself that it is asynchronous.
        options = ToolOptions(script.name, script.definition.description or script.name, _ANY, _TIMEOUT_S)
        table.add(script.__call__, options)
    return table


Kind = Literal["say", "file", "backchannel", "sound", "text", "dtmf", "quiet"]
Answered = bool | Literal["maybe"]
Alternatives: TypeAlias = tuple[str, ...]
"""Wordings of the same thing; one is enough."""


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
    telephone: bool = False
    """Whether the microphone is heard through G.711 µ-law at 8 kHz."""
    loss: Annotated[float, msgspec.Meta(ge=0.0, le=MOST_LOSS)] = 0.0
    """Share of packets of 20 ms that are lost, 0 to 0.5."""


@dataclass(frozen=True)
class ExpectedCall:
    """A tool call that has to be made."""

    name: str
    arguments: dict[str, Any]
    """Values, or :class:`re.Pattern` for those that have to match as a whole."""
    is_partial: bool = False
    """Whether the call may have further arguments."""


class Persona(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A caller whose words are a language model's."""

    prompt: str
    """Who calls, and what for."""
    max_turns: Annotated[int, msgspec.Meta(ge=1, le=100)] = 12
    """The caller hangs up after so many."""


Wordings: TypeAlias = list[str | list[str]]
"""Words, or ``/a regular expression/``; of a list within the list one is enough."""


class Criteria(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to come of a whole call; what is left out is not looked at."""

    tools: list[str] = []
    """Calls that have to be made, in this order; others may come between them."""
    not_called: list[str] = []
    """Names of tools."""
    steps: list[str] = []
    """Names of steps that have to begin, in this order; others may begin between them."""
    collected: dict[str, str] = {}
    """Values that fields have to have at the end."""
    said: Wordings = []
    """All of it has to be said by the agent."""
    never_said: Wordings = []
    ended_by: Literal["agent", "caller"] | None = None
    latency_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Longest time from the end of a caller's turn to the first audio of its answer; as text: to the first
    words."""
    interruptions: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Most answers that are interrupted."""
    judge: list[str] = []
    """Statements about the call that a language model has to confirm."""


@dataclass(frozen=True)
class Exchange:
    """One thing that the caller does, and what is to come of it."""

    index: int
    kind: Kind
    cue: StartCue
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
    tools: tuple[ExpectedCall, ...] | None = ()
    """None: any."""
    answer: tuple[Alternatives, ...] = ()
    never: tuple[Alternatives, ...] = ()
    """What must not be in the answer."""
    step: str = ""
    """In which the conversation has to be before the next exchange; empty: it does not matter."""
    decisions: dict[str, str] = field(default_factory=dict)
    """Answers to questions about the conversation, by name."""
    answered: Answered = True
    interrupts: bool = False

    @property
    def is_turn(self) -> bool:
        """Whether it is an utterance of the caller."""
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
    file: Path | None = None
    persona: Persona | None = None
    """Goes on after the exchanges."""
    expect: Criteria = field(default_factory=Criteria)
