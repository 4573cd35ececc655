"""OpenAI's session object, field by field."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

Fraction: TypeAlias = Annotated[float, Meta(gt=0, lt=1)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=10_000)]


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form of audio; PCM is 16 bits at 24 kHz, the others are 8 bits at 8 kHz."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
    rate: Literal[24_000] | None = None


class ServerVad(msgspec.Struct, frozen=True, tag_field="type", tag="server_vad", forbid_unknown_fields=True):
    """A pause of a given length ends the user's turn."""

    threshold: Fraction | None = 0.5
    prefix_padding_ms: Milliseconds | None = 300
    silence_duration_ms: Milliseconds | None = 500
    idle_timeout_ms: Annotated[int, Meta(ge=5_000, le=30_000)] | None = None
    create_response: bool | None = True
    interrupt_response: bool | None = True


class SemanticVad(
    msgspec.Struct, frozen=True, tag_field="type", tag="semantic_vad", forbid_unknown_fields=True
):
    """Words, sound and silence end the user's turn."""

    eagerness: Literal["low", "medium", "high", "auto"] | None = "auto"
    create_response: bool | None = True
    interrupt_response: bool | None = True


TurnDetection: TypeAlias = ServerVad | SemanticVad


class Transcription(msgspec.Struct, frozen=True, omit_defaults=True):
    """That the client wants to read what the user says; fields that are not here are ignored."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    keywords: list[str] | None = None


class AudioIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user's audio."""

    format: Format | UnsetType | None = UNSET
    noise_reduction: dict[str, Any] | UnsetType | None = UNSET
    transcription: Transcription | UnsetType | None = UNSET
    turn_detection: TurnDetection | UnsetType | None = UNSET


class NamedVoice(msgspec.Struct, frozen=True):
    """A voice of one's own."""

    id: str


class AudioOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The agent's audio."""

    format: Format | UnsetType | None = UNSET
    voice: str | NamedVoice | UnsetType | None = UNSET
    speed: float | UnsetType | None = UNSET


class Audio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Both."""

    input: AudioIn | UnsetType | None = UNSET
    output: AudioOut | UnsetType | None = UNSET


class Function(msgspec.Struct, frozen=True):
    """A function that the client runs."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class SessionFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may set; what it leaves out stays as it is."""

    type: Literal["realtime", "transcription"] | UnsetType = UNSET
    model: str | UnsetType | None = UNSET
    output_modalities: Annotated[list[Literal["text", "audio"]], Meta(min_length=1)] | UnsetType | None = (
        UNSET
    )
    instructions: str | UnsetType | None = UNSET
    audio: Audio | UnsetType | None = UNSET
    tools: list[dict[str, Any]] | UnsetType | None = UNSET
    tool_choice: Any = UNSET
    max_output_tokens: Annotated[int, Meta(ge=1)] | Literal["inf"] | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    prompt: Any = UNSET
    reasoning: Any = UNSET
    tracing: Any = UNSET
    truncation: Any = UNSET
    include: list[str] | UnsetType | None = UNSET
