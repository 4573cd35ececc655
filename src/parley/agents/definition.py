"""What the file of an agent says."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from parley.calls.settings import RecordSettings, WebhookSettings
from parley.engines.base import Continuation
from parley.protocol import (
    MAX_DECISIONS,
    MAX_STEPS,
    AgentSummary,
    BargeInOptions,
    CollectField,
    DecisionQuestion,
    EndingOptions,
    Language,
    SamplingOptions,
    SilenceOptions,
    Start,
    Step,
    TurnOptions,
    VadOptions,
)
from parley.tools.settings import ToolSettings
from parley.turns.settings import NUMBERS

_PROMPT = "system_prompt"
"""The field of :class:`Start` that is called ``instructions`` in a file."""
_OWN = frozenset({"tools"})
"""Fields that mean something else than the fields of :class:`Start` of these names."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the file; unknown fields are errors."""


class PageSettings(_Part, frozen=True, kw_only=True):
    """How a page shows the agent."""

    title: Annotated[str, msgspec.Meta(max_length=80)] = ""
    """Its name for users. Empty: the file's name."""
    colour: Annotated[str, msgspec.Meta(pattern=r"^(|#[0-9a-fA-F]{6})$")] = ""
    """Accent colour, such as ``#0a7d5a``. Empty: the page's own."""
    examples: Annotated[list[str], msgspec.Meta(max_length=8)] = []
    """Things that users may say, at most 8."""


class TelephoneSettings(_Part, frozen=True, kw_only=True):
    """Which telephone calls the agent takes."""

    numbers: Annotated[
        list[Annotated[str, msgspec.Meta(pattern=r"^\+[1-9][0-9]{6,14}$")]], msgspec.Meta(max_length=64)
    ] = []
    """Called numbers: E.164, such as ``+493012345678``. A number belongs to one agent."""


class ModelChoice(_Part, frozen=True, kw_only=True):
    """A language model: one of this server, or one of a server with OpenAI's chat completions."""

    name: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """A model of this server. Empty: that of ``url``, or the server's own."""
    url: str = ""
    """Base URL of another server, up to the version: ``https://api.example.com/v1``."""
    model: str = ""
    """Name of the model at ``url``."""
    key_file: str = ""
    """File with the key of that server. A relative path begins at the folder of agents. Empty: no key."""
    continuation: Continuation = "none"
    """How that server continues a message that has begun."""


class ModelSettings(ModelChoice, frozen=True, kw_only=True):
    """The language model, and those that take its place."""

    fallback: Annotated[list[ModelChoice], msgspec.Meta(max_length=3)] = []
    """Models that answer, in this order, where those before fail or are late before their first token; at
    most 3."""
    context_tokens: Annotated[int, msgspec.Meta(ge=512, le=16_777_216)] | None = None
    """The model's window. Absent: as the setting ``context_tokens`` says."""


class AgentDefinition(_Part, frozen=True, kw_only=True):
    """One file ``NAME.toml``.

    A field that :class:`parley.protocol.Start` has too means the same, and is the default of the sessions
    that choose this agent.
    """

    instructions: str
    """The system prompt."""
    greeting: str | None = None
    """Spoken verbatim at the start. Empty: no greeting. Absent: the server's greeting, if it has one."""
    voice: str | None = None
    """Absent: the default voice of the first synthesizer that has the language."""
    exaggeration: float | None = None
    """Intensity of emotion, 0-2, for synthesizers that have it."""
    guidance_weight: float | None = None
    """Weight of classifier-free guidance, 0-1, for synthesizers that have it."""
    language: Language = "en"
    """A tag such as ``en`` or ``pt-BR``. Empty: what the recogniser detects."""
    phrases: list[str] = []
    """Names and words that the recogniser favours."""
    phrase_weight: float = 1.0
    """Strength of that, 0 (none) to 10."""
    vad: VadOptions = VadOptions()
    """When audio counts as speech."""
    turn: TurnOptions = TurnOptions()
    """When a pause ends the user's turn."""
    barge_in: BargeInOptions = BargeInOptions()
    """When the user's speech over the agent's is an interruption."""
    silence: SilenceOptions = SilenceOptions()
    """What happens while neither side speaks."""
    sampling: SamplingOptions = SamplingOptions()
    """Sampling of the language model."""
    model: ModelSettings = ModelSettings()
    """The language model."""
    tools: ToolSettings = ToolSettings()
    """Tools that the server runs for this agent: the fields of [tools.md](tools.md#tools-of-the-server)."""
    server_tools: bool = False
    """Whether it has the server's own tools too."""
    ending: EndingOptions = EndingOptions()
    """How the language model can end or transfer the call."""
    steps: Annotated[list[Step], msgspec.Meta(max_length=MAX_STEPS)] = []
    """Parts of the conversation, at most 32; it begins with the first."""
    knowledge: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=512)]], msgspec.Meta(max_length=32)
    ] = []
    """Files that answers may draw on, such as ``docs/**/*.md`` and ``faq.pdf``: Markdown, text, HTML and PDF,
    below the folder of agents, or below the fixed part of an absolute pattern
    ([how they are used](your-agent.md#knowledge))."""
    decisions: Annotated[list[DecisionQuestion], msgspec.Meta(max_length=MAX_DECISIONS)] = []
    """Questions about the conversation, at most 16; each answer is an event `decision`."""
    facts: Literal["off", "strict"] = "off"
    """``strict``: no figure, name or code is spoken that is in none of the agent's sources."""
    collect: Annotated[list[CollectField], msgspec.Meta(max_length=64)] = []
    """Values that the agent can ask the user for."""
    record: bool = False
    """Whether calls are recorded."""
    recording: RecordSettings = RecordSettings()
    """What is kept of them, and for how long."""
    webhooks: Annotated[list[WebhookSettings], msgspec.Meta(max_length=8)] = []
    """URLs that get events of calls."""
    page: PageSettings = PageSettings()
    """How a page shows the agent."""
    telephone: TelephoneSettings = TelephoneSettings()
    """Which telephone calls the agent takes."""

    def complete(self, start: Start) -> Start:
        """The options of a session: those that have their default value in ``start`` are the definition's.

        Of options with parts, such as ``turn``, each part by itself. The definition's numbers of turns do not
        count where ``start`` wants every pause to end one.
        """
        defaults = Start()
        defined = self
        if start.turn.eagerness == "off":
            turn = msgspec.structs.replace(self.turn, **dict.fromkeys(NUMBERS))
            defined = msgspec.structs.replace(self, turn=turn)
        merged = {name: _merge(getattr(defined, name), start, defaults, name) for name in SHARED_FIELDS}
        return msgspec.structs.replace(
            start, **merged, **{_PROMPT: _merge(self.instructions, start, defaults, _PROMPT)}
        )

    def summary(self, name: str) -> AgentSummary:
        """What clients learn of the agent; ``name`` is the file's."""
        return AgentSummary(
            name=name,
            title=self.page.title or name,
            language=self.language,
            voice=self.voice or "",
            colour=self.page.colour,
            numbers=self.telephone.numbers,
        )


def _fields(kind: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind)]


SHARED_FIELDS = tuple(
    name for name in _fields(AgentDefinition) if name in _fields(Start) and name not in _OWN
)
"""Options of a session that a definition has under the same name."""


def _merge(defined: object, given: msgspec.Struct, defaults: msgspec.Struct, name: str) -> object:
    value, default = getattr(given, name), getattr(defaults, name)
    if isinstance(value, msgspec.Struct) and isinstance(defined, msgspec.Struct):
        parts = {part: _merge(getattr(defined, part), value, default, part) for part in _fields(type(value))}
        return msgspec.structs.replace(value, **parts)
    return defined if value == default else value
