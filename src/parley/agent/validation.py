"""What a session may ask for when it starts."""

from __future__ import annotations

import re

import msgspec

from parley.agent.config import AgentConfig
from parley.agent.ports import Engines
from parley.agent.spoken_text import check_spoken
from parley.agent.user_idle import choose_idle_settings
from parley.engines.base import Synthesizer
from parley.errors import (
    InvalidMessageError,
    UnsupportedSampleRateError,
    UnsupportedVoiceError,
)
from parley.llm.history import estimate_tokens
from parley.llm.sampling import choose_sampling
from parley.protocol import (
    INPUT_SAMPLE_RATE,
    MAX_ALTERNATIVES,
    OUTPUT_SAMPLE_RATES,
    AgentDescription,
    Start,
    Tool,
    encode,
)
from parley.tools.base import ServerTools
from parley.tools.schema import SchemaError, argument_schema
from parley.turns.settings import choose_settings
from parley.vad.segmenter import check_options as check_vad_options

_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


_MAX_VOICE_NAME = 200
_MAX_BARGE_IN_MS = 5_000
_MAX_BARGE_IN_WORDS = 10


def check_start(
    start: Start,
    synthesizer: Synthesizer,
    config: AgentConfig,
    server_tools: ServerTools | None = None,
) -> None:
    """Refuse a session that could not be held as asked.

    Args:
        start: the client's first message.
        synthesizer: has the voice and speaks the language, or may: then it is asked when the session begins.
        config: the agent's limits.
        server_tools: the tools that the session has besides its own.

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
    _check_voice(start)
    synthesizer.check_known(start.voice, start.language)
    check_vad_options(start.vad)
    choose_settings(start.turn, config.eagerness)
    choose_idle_settings(start.silence, config.silence)
    choose_sampling(start.sampling, config.sampling)
    _check_numbers(start)
    if start.greeting:
        check_spoken(start.greeting, "greeting")
    if len(start.tools) > config.max_tools:
        raise InvalidMessageError(f"{len(start.tools)} tools; at most {config.max_tools} are allowed")
    # The recogniser has limits of its own for phrases: no prompt holds them.
    # Nor does a client answer for the server's own tools, which are bounded where they come from.
    in_prompt = msgspec.structs.replace(start, phrases=[])
    _check_size("the system prompt and the tools take", encode(in_prompt).decode(), config)
    names = [tool.name for tool in start.tools]
    for tool in start.tools:
        _check_tool(tool)
        if names.count(tool.name) > 1:
            raise InvalidMessageError(f"tool {tool.name!r} is defined twice")
        if server_tools and tool.name in server_tools.names:
            raise InvalidMessageError(f"tool {tool.name!r}: the server has a tool of this name")


def _check_voice(start: Start) -> None:
    if start.voice is not None and not 1 <= len(start.voice) <= _MAX_VOICE_NAME:
        raise UnsupportedVoiceError(f"a voice's name of {len(start.voice)} characters")
    for name, value, most in (
        ("exaggeration", start.exaggeration, 2.0),
        ("guidance_weight", start.guidance_weight, 1.0),
    ):
        if value is not None and not 0.0 <= value <= most:
            raise InvalidMessageError(f"{name} is {value}; it must be 0 to {most:g}")


def check_prompt(system_prompt: str | None, config: AgentConfig) -> None:
    """Refuse a system prompt that leaves no room for a conversation.

    Raises:
        InvalidMessageError: it is too long.
    """
    _check_size("the system prompt takes", system_prompt or "", config)


def check_remembered(text: str, config: AgentConfig) -> None:
    """Refuse a text that cannot be a message of the history.

    Raises:
        InvalidMessageError: it is empty or too long.
    """
    if not text.strip():
        raise InvalidMessageError("remember.text is empty")
    _check_size("remember.text takes", text, config)


def _check_size(what: str, text: str, config: AgentConfig) -> None:
    tokens, limit = estimate_tokens(text), config.prompt_tokens // 2
    if tokens > limit:
        raise InvalidMessageError(
            f"{what} about {tokens} tokens; at most {limit} leave room for a conversation"
        )


def _check_numbers(start: Start) -> None:
    for name, value, most in (
        ("barge_in.min_speech_ms", start.barge_in.min_speech_ms, _MAX_BARGE_IN_MS),
        ("barge_in.min_words", start.barge_in.min_words, _MAX_BARGE_IN_WORDS),
        ("alternatives", start.alternatives, MAX_ALTERNATIVES),
    ):
        if not 0 <= value <= most:
            raise InvalidMessageError(f"{name} is {value}; it must be 0 to {most}")


def _check_tool(tool: Tool) -> None:
    if not _TOOL_NAME.fullmatch(tool.name):
        raise InvalidMessageError(
            f"tool name {tool.name!r}: letters, digits, - and _ are allowed, at most 64, no digit first"
        )
    try:
        argument_schema(tool.parameters)
    except SchemaError as error:
        raise InvalidMessageError(f"tool {tool.name!r}: {error}") from error


def describe(engines: Engines, config: AgentConfig) -> AgentDescription:
    """The agent as it is configured now; its prompt is nobody's business."""
    voices = engines.synthesizer.voices
    synthesizers = [name for name in config.tts if name not in config.absent_models]
    return AgentDescription(
        recognizer=config.asr,
        language_model=config.llm,
        synthesizers=synthesizers or list(config.tts),
        languages=list(engines.synthesizer.languages),
        voices=None if voices is None else list(voices),
        tools=sorted(engines.server_tools.names) if engines.server_tools else [],
        examples=list(config.examples),
    )
