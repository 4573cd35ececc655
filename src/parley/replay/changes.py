"""Other options and settings for a call that is replayed."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from parley.agent.config import AgentConfig
from parley.errors import InvalidInputError
from parley.names import suggest_name
from parley.protocol import Start
from parley.runtime.parameters import is_setting

StructT = TypeVar("StructT", bound=msgspec.Struct)
_OF_THE_SERVER = frozenset(
    "asr llm llm_url llm_model llm_key_file llm_continuation tts tts_fallback agents calls calls_store "
    "calls_list record_debug max_sessions max_calls refuse_when_late typical_call_s embedder knowledge_store "
    "replaceable_tools ignore_background speaker one_caller boost_names vad phrases phrase_weight".split()
)
"""Settings whose models, stores and limits a replay does not have; its texts are those of the recording."""


def change(start: Start, config: AgentConfig, text: str) -> tuple[Start, AgentConfig]:
    """The options and settings of a call with ``SETTING=VALUE``; the value is JSON, or a text.

    Raises:
        InvalidInputError: there is no such setting, or it cannot have this value.
    """
    name, _, value = text.partition("=")
    first, *rest = name.split(".")
    if first in _OF_THE_SERVER:
        raise InvalidInputError(f"{name} needs a server: a replay has no models and no other calls")
    options, settings = Start.__struct_fields__, _settings_of(config)
    try:
        if first in options:
            return _set(start, [first, *rest], value), config
        if name in settings:
            return start, _set(config, settings[name], value)
    except (msgspec.ValidationError, AttributeError) as error:
        raise InvalidInputError(f"{text}: {error}") from error
    raise InvalidInputError(f"there is no setting {name!r}{suggest_name(name, (*options, *settings))}")


def _settings_of(struct: msgspec.Struct) -> dict[str, list[str]]:
    """By the name of a setting where it is: fields, each of the one before it."""
    found: dict[str, list[str]] = {}
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if isinstance(value, msgspec.Struct):
            found |= {name: [field.name, *path] for name, path in _settings_of(value).items()}
        elif is_setting(field):
            found[field.encode_name] = [field.name]
    return found


def _set(struct: StructT, path: list[str], text: str) -> StructT:
    name, *rest = path
    before = getattr(struct, name)
    value: Any
    if rest and not isinstance(before, msgspec.Struct):
        raise AttributeError(f"{name} has no fields")
    if rest:
        value = _set(before, rest, text)
    else:
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            value = text
        kind = next(field.type for field in msgspec.structs.fields(struct) if field.name == name)
        value = msgspec.convert(value, kind, strict=False)
    return msgspec.structs.replace(struct, **{name: value})
