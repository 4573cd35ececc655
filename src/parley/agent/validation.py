"""What a session may ask for when it starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from parley.agent.config import AgentConfig
from parley.errors import (
    InvalidMessageError,
    UnsupportedLanguageError,
    UnsupportedSampleRateError,
    UnsupportedVoiceError,
)
from parley.llm.history import estimate_tokens
from parley.protocol import INPUT_SAMPLE_RATE, OUTPUT_SAMPLE_RATES, Start, Tool, encode
from parley.turns.settings import choose_settings
from parley.vad.segmenter import check_options as check_vad_options

_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_JSON_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})


_MAX_VOICE_NAME = 200


def check_start(
    start: Start, voices: Sequence[str] | None, languages: Sequence[str], config: AgentConfig
) -> None:
    """Refuse a session that could not be held as asked.

    Args:
        start: the client's first message.
        voices: what the synthesizer has; None: it is asked when the session begins.
        languages: what the synthesizer speaks; a session may name a dialect of one ("en-GB").
        config: the agent's limits.

    Raises:
        InvalidInputError: of the kind that says what is wrong.
    """
    if start.input_sample_rate != INPUT_SAMPLE_RATE:
        raise UnsupportedSampleRateError(
            f"input at {start.input_sample_rate} Hz; only {INPUT_SAMPLE_RATE} Hz is accepted"
        )
    if start.output_sample_rate not in OUTPUT_SAMPLE_RATES:
        rates = ", ".join(map(str, OUTPUT_SAMPLE_RATES))
        raise UnsupportedSampleRateError(f"output at {start.output_sample_rate} Hz; possible are {rates}")
    if start.language not in languages and primary_language(start.language) not in languages:
        raise UnsupportedLanguageError(
            f"language {start.language!r} is not spoken; only {', '.join(languages)}"
        )
    _check_voice(start, voices)
    check_vad_options(start.vad)
    choose_settings(start.turn, config.eagerness)
    if len(start.tools) > config.max_tools:
        raise InvalidMessageError(f"{len(start.tools)} tools; at most {config.max_tools} are allowed")
    names = [tool.name for tool in start.tools]
    for tool in start.tools:
        _check_tool(tool)
        if names.count(tool.name) > 1:
            raise InvalidMessageError(f"tool {tool.name!r} is defined twice")
    # The recogniser has limits of its own for phrases: no prompt holds them.
    fixed = estimate_tokens(len(encode(msgspec.structs.replace(start, phrases=[]))))
    if fixed > config.prompt_tokens // 2:
        raise InvalidMessageError(
            f"the system prompt and the tools take about {fixed} tokens; "
            f"at most {config.prompt_tokens // 2} leave room for a conversation"
        )


def _check_voice(start: Start, voices: Sequence[str] | None) -> None:
    if start.voice is not None:
        if voices is not None and start.voice not in voices:
            raise UnsupportedVoiceError(f"voice {start.voice!r}; possible are {', '.join(voices)}")
        if not 1 <= len(start.voice) <= _MAX_VOICE_NAME:
            raise UnsupportedVoiceError(f"a voice's name of {len(start.voice)} characters")
    for name, value, most in (
        ("exaggeration", start.exaggeration, 2.0),
        ("guidance_weight", start.guidance_weight, 1.0),
    ):
        if value is not None and not 0.0 <= value <= most:
            raise InvalidMessageError(f"{name} is {value}; it must be 0 to {most:g}")


def primary_language(language: str) -> str:
    """The language of a tag without its region: "en" of "en-GB"."""
    return language.replace("_", "-").partition("-")[0].lower()


def _check_tool(tool: Tool) -> None:
    if not _TOOL_NAME.fullmatch(tool.name):
        raise InvalidMessageError(
            f"tool name {tool.name!r}: letters, digits, - and _ are allowed, at most 64, no digit first"
        )
    if not tool.parameters:
        return
    if tool.parameters.get("type", "object") != "object":
        raise InvalidMessageError(f"tool {tool.name!r}: parameters must be a JSON schema of type object")
    _check_schema(tool.parameters, f"tool {tool.name!r}: parameters")


def _check_schema(schema: Any, where: str) -> None:
    """The parts of a JSON schema that a prompt is made of; the rest is the client's own business."""
    if not isinstance(schema, dict):
        raise InvalidMessageError(f"{where} must be a JSON object")
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in _JSON_TYPES:
            raise InvalidMessageError(f"{where}.type is {kind!r}, which JSON schema does not know")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise InvalidMessageError(f"{where}.properties must be a JSON object")
    for name, sub in properties.items():
        _check_schema(sub, f"{where}.properties.{name}")
    required = schema.get("required", [])
    names = list(properties)  # a list, because what is looked up may be anything
    if not isinstance(required, list) or not all(name in names for name in required):
        raise InvalidMessageError(f"{where}.required names a property that is not described")
