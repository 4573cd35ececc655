"""Checks of what a client asks for, and the description of the agent that it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from parley.agent.collecting.collector import COLLECT, check_fields
from parley.agent.config import AgentConfig
from parley.agent.decisions import check_decisions
from parley.agent.ending import EndingTools
from parley.agent.ports import Engines
from parley.agent.steps import check_steps
from parley.agent.steps import tool_names as step_tools
from parley.agent.user_idle import UserIdleSettings
from parley.asr.decoding.boosting import MAX_WEIGHT
from parley.engines.base import NamesModel, Synthesizer
from parley.errors import InvalidMessageError, UnsupportedSampleRateError, UnsupportedVoiceError
from parley.llm.history import estimate_tokens
from parley.llm.known_models import is_demonstration
from parley.llm.messages import choose_sampling
from parley.names import check_names
from parley.protocol import (
    ANY_TOOL,
    INPUT_SAMPLE_RATE,
    MAX_ALTERNATIVES,
    OUTPUT_SAMPLE_RATES,
    AgentDescription,
    SilenceOptions,
    Start,
    Tool,
    encode,
)
from parley.tools.base import ServerTools
from parley.tools.schema import TOOL_NAME, SchemaError, argument_schema
from parley.tts.text import has_words
from parley.turns.settings import choose_settings
from parley.vad.segmenter import check_options as check_vad_options

MAX_SPOKEN = 4_000
"""Characters of what is said at once."""
_MAX_VOICE_NAME = 200
_MAX_BARGE_IN_MS = 5_000
_MAX_BARGE_IN_WORDS = 10
_MIN_IDLE_MS = 1_000
_MAX_IDLE_MS = 600_000
_MAX_IDLE_PROMPTS = 8
_MAX_IDLE_PROMPT_CHARACTERS = 500


def check_spoken(text: str, name: str, most: int = MAX_SPOKEN) -> None:
    """Refuse a text without words or with more than ``most`` characters; ``name`` is its field."""
    if not has_words(text):
        raise InvalidMessageError(f"{name} has no words")
    if len(text) > most:
        raise InvalidMessageError(f"{name} has {len(text)} characters; at most {most} are allowed")


def check_start(
    start: Start,
    synthesizer: Synthesizer,
    config: AgentConfig,
    server_tools: ServerTools | None = None,
) -> None:
    """Refuse a session whose options are invalid or not supported.

    A voice that ``synthesizer`` may have is not refused here, but checked when the session begins.

    Raises:
        InvalidInputError: the subclass has the code of the reason.
    """
    if start.input_sample_rate != INPUT_SAMPLE_RATE:
        raise UnsupportedSampleRateError(
            f"input at {start.input_sample_rate} Hz; only {INPUT_SAMPLE_RATE} Hz is accepted"
        )
    if start.output_sample_rate not in OUTPUT_SAMPLE_RATES:
        rates = ", ".join(map(str, OUTPUT_SAMPLE_RATES))
        raise UnsupportedSampleRateError(f"output at {start.output_sample_rate} Hz; possible are {rates}")
    for voice in start.voices:
        _check_voice(voice)
        synthesizer.check_known(voice, speech_language(start, synthesizer))
    check_vad_options(start.vad)
    choose_settings(start.turn, config.eagerness)
    choose_idle_settings(start.silence, config.silence)
    choose_sampling(start.sampling, config.sampling)
    _check_numbers(start)
    if start.greeting:
        check_spoken(start.greeting, "greeting")
    if len(start.tools) > config.max_tools:
        raise InvalidMessageError(f"{len(start.tools)} tools; at most {config.max_tools} are allowed")
    # Phrases are not part of the prompt, and the recogniser limits them. The server's own tools are not
    # counted here either: the toolbox limits them.
    longest = sorted(start.steps, key=lambda step: len(msgspec.json.encode(step)))[-1:]
    in_prompt = msgspec.structs.replace(start, phrases=[], decisions=[], resume=None, steps=longest)
    _check_size("the system prompt and the tools take", encode(in_prompt).decode(), config)
    built_in = _check_built_in(start, server_tools)
    check_decisions(start)
    names = [tool.name for tool in start.tools]
    for tool in start.tools:
        _check_tool(tool)
        if names.count(tool.name) > 1:
            raise InvalidMessageError(f"tool {tool.name!r} is defined twice")
        if server_tools and tool.name in server_tools.names:
            raise InvalidMessageError(f"tool {tool.name!r}: the server has a tool of this name")
        if tool.name in built_in:
            option = built_in[tool.name]
            raise InvalidMessageError(f"tool {tool.name!r}: the option {option} has a tool of this name")
    offered = [*names, *(server_tools.names if server_tools else ()), *EndingTools(start.ending).names]
    _check_must_call(start.must_call, [*offered, *built_in])
    check_steps(start, offered)
    check_fields(start)


def _check_built_in(start: Start, server_tools: ServerTools | None) -> Mapping[str, str]:
    """The names of the tools that options ask for, with the names of the options."""
    check_names([target.name for target in start.ending.transfers], "ending.transfers", "targets")
    names = dict.fromkeys(EndingTools(start.ending).names, "ending")
    names |= dict.fromkeys(step_tools(start.steps), "steps")
    if start.collect:
        names[COLLECT] = "collect"
    for name, option in names.items():
        if server_tools and name in server_tools.names:
            raise InvalidMessageError(f"{option}: the server has a tool {name!r} of its own")
    return names


def _check_voice(voice: str | None) -> None:
    if voice is not None and not 1 <= len(voice) <= _MAX_VOICE_NAME:
        raise UnsupportedVoiceError(f"a voice's name of {len(voice)} characters")


def speech_language(start: Start, synthesizer: Synthesizer) -> str:
    """The language that the agent speaks: the session's; if it names none, the synthesizer's first."""
    return start.language or synthesizer.languages[0]


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
    tokens, limit = estimate_tokens(text), config.text_tokens
    if tokens > limit:
        raise InvalidMessageError(
            f"{what} about {tokens} tokens; at most {limit} leave room for a conversation"
        )


def _check_numbers(start: Start) -> None:
    for name, value, most in (
        ("exaggeration", start.exaggeration, 2),
        ("guidance_weight", start.guidance_weight, 1),
        ("phrase_weight", start.phrase_weight, MAX_WEIGHT),
        ("barge_in.min_speech_ms", start.barge_in.min_speech_ms, _MAX_BARGE_IN_MS),
        ("barge_in.min_words", start.barge_in.min_words, _MAX_BARGE_IN_WORDS),
        ("alternatives", start.alternatives, MAX_ALTERNATIVES),
    ):
        if value is not None and not 0 <= value <= most:
            raise InvalidMessageError(f"{name} is {value}; it must be 0 to {most:g}")


def choose_idle_settings(options: SilenceOptions, default: UserIdleSettings) -> UserIdleSettings:
    """The idle settings of a session: the client's options, else the server's ``default``.

    Raises:
        InvalidMessageError: a time is out of its range, or a prompt is empty or too long.
    """
    prompts = default.prompts if options.prompts is None else options.prompts
    if not 1 <= len(prompts) <= _MAX_IDLE_PROMPTS:
        raise InvalidMessageError(
            f"silence.prompts has {len(prompts)} entries; it must have 1 to {_MAX_IDLE_PROMPTS}"
        )
    for prompt in prompts:
        check_spoken(prompt, "a text of silence.prompts", _MAX_IDLE_PROMPT_CHARACTERS)
    return UserIdleSettings(
        prompt_after_s=_idle_seconds("prompt_after_ms", options.prompt_after_ms, default.prompt_after_s),
        prompts=tuple(prompts),
        hang_up_after_s=_idle_seconds("hang_up_after_ms", options.hang_up_after_ms, default.hang_up_after_s),
    )


def _idle_seconds(name: str, value_ms: int | None, default_s: float) -> float:
    if value_ms is None:
        return default_s
    if value_ms != 0 and not _MIN_IDLE_MS <= value_ms <= _MAX_IDLE_MS:
        raise InvalidMessageError(
            f"silence.{name} is {value_ms}; it must be 0, or {_MIN_IDLE_MS} to {_MAX_IDLE_MS}"
        )
    return value_ms / 1000


def _check_must_call(wanted: str, offered: Sequence[str]) -> None:
    if wanted and not any(wanted in (ANY_TOOL, name) for name in offered):
        raise InvalidMessageError(f"must_call is {wanted!r}, and there is no such tool")


def _check_tool(tool: Tool) -> None:
    if not TOOL_NAME.fullmatch(tool.name):
        raise InvalidMessageError(
            f"tool name {tool.name!r}: letters, digits, - and _ are allowed, at most 64"
        )
    try:
        argument_schema(tool.parameters)
    except SchemaError as error:
        raise InvalidMessageError(f"tool {tool.name!r}: {error}") from error


def describe(
    engines: Engines,
    config: AgentConfig,
    *,
    recognizer: str,
    recognized_languages: list[str] | None,
    unavailable: Sequence[str] = (),
) -> AgentDescription:
    """The agent's description for clients, without its prompt.

    ``recognizer`` is the session's; ``unavailable`` are recognisers that did not say their languages.
    """
    voices = engines.synthesizer.voices
    names = [name for _, name in config.chat_models]
    answering = engines.chat.model if isinstance(engines.chat, NamesModel) else ""
    synthesizers = [name for name in config.tts if name not in config.absent_models]
    return AgentDescription(
        recognizer=recognizer,
        recognizers=list(config.recognizers),
        language_model=answering or names[0],
        language_models=names,
        demonstration=is_demonstration(answering or names[0]),
        synthesizers=synthesizers or list(config.tts),
        languages=list(engines.synthesizer.languages),
        recognized_languages=recognized_languages,
        unavailable_recognizers=list(unavailable),
        voices=None if voices is None else list(voices),
        tools=sorted(engines.server_tools.names) if engines.server_tools else [],
        examples=list(config.examples),
        default_prompt=config.has_default_prompt,
        agents=engines.agents.summaries if engines.agents else [],
    )
