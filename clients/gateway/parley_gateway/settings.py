"""The gateway's settings: a TOML file, then the environment, then flags; the later ones count.

Each part declares its own struct. A field is ``[part] field`` in the file and
``PARLEY_GATEWAY_<PART>_<FIELD>`` in the environment, where lists are separated by commas, or JSON, and
anything deeper is JSON.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec

from parley.names import suggest_name
from parley_gateway.apis.settings import RealtimeSettings, SessionSettings, TwilioSettings
from parley_gateway.audio.decoders import DecoderSettings
from parley_gateway.calls import CallSettings
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.settings import JwtSettings, RateSettings, SecuritySettings
from parley_gateway.servers import ServerSettings
from parley_gateway.settings_sections import (
    POSITIONAL,
    LimitSettings,
    ListenSettings,
    LogSettings,
    StageSettings,
    WriterSettings,
)
from parley_gateway.sip.settings import SipSettings
from parley_gateway.spool import UploadSettings
from parley_gateway.takeover.settings import TakeoverSettings

PREFIX = "PARLEY_GATEWAY_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
_NUMBERS = {"int": "a whole number", "float": "a number"}
_NOT_A_NUMBER = re.compile(r"Expected `(int|float)(?: \| null)?`, got `str`")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All parts."""

    listen: ListenSettings = ListenSettings()
    log: LogSettings = LogSettings()
    servers: ServerSettings = ServerSettings()
    calls: CallSettings = CallSettings()
    limits: LimitSettings = LimitSettings()
    writer: WriterSettings = WriterSettings()
    security: SecuritySettings = SecuritySettings()
    jwt: JwtSettings = JwtSettings()
    rates: RateSettings = RateSettings()
    sessions: SessionSettings = SessionSettings()
    takeover: TakeoverSettings = TakeoverSettings()
    twilio: TwilioSettings = TwilioSettings()
    sip: SipSettings = SipSettings()
    realtime: RealtimeSettings = RealtimeSettings()
    stages: StageSettings = StageSettings()
    uploads: UploadSettings = UploadSettings()
    decoders: DecoderSettings = DecoderSettings()


def load_settings(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """Read and check the settings.

    Args:
        file: TOML; None: none.
        environment: Variables, of which those that begin with ``PARLEY_GATEWAY_`` count.
        flags: Part → field → value; None as a value: not given.

    Raises:
        GatewaySettingsError: a file that cannot be read, an unknown name, or a wrong value.
    """
    merged: dict[str, Any] = _read(file) if file is not None else {}
    for part, field, text in _of_environment(environment or {}):
        merged.setdefault(part, {})[field] = text
    for part, values in (flags or {}).items():
        given = {field: value for field, value in values.items() if value is not None}
        merged.setdefault(part, {}).update(given)
    try:
        return msgspec.convert(merged, Settings)
    except msgspec.ValidationError as error:
        raise GatewaySettingsError(f"the settings cannot be used: {error}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise GatewaySettingsError(f"{file}: cannot be read: {error}") from error


def _of_environment(environment: Mapping[str, str]) -> list[tuple[str, str, Any]]:
    """Part, field and value of each variable."""
    fields = {
        f"{PREFIX}{part.name}_{field.name}".upper(): (part.name, field)
        for part in msgspec.structs.fields(Settings)
        for field in msgspec.structs.fields(part.type)
    }
    found = []
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name == CONFIG_VARIABLE:
            continue
        if name not in fields:
            raise GatewaySettingsError(f"{name}: there is no such setting{suggest_name(name, fields)}")
        part, field = fields[name]
        try:
            found.append((part, field.name, _value(text, field)))
        except msgspec.MsgspecError as error:
            raise GatewaySettingsError(f"{name}: {_problem(error)}") from error
    return found


def _problem(error: msgspec.MsgspecError) -> str:
    """What is wrong with a variable; each one is a text, so only the number that it should be is named."""
    if found := _NOT_A_NUMBER.fullmatch(str(error)):
        return f"expected {_NUMBERS[found[1]]}"
    return str(error)


def _value(text: str, field: msgspec.structs.FieldInfo) -> Any:
    """A variable's text as the field's type, in the form that a file would have."""
    kind = field.type
    if _is_json(text):
        return msgspec.json.decode(text)
    has_gaps = False
    if get_origin(kind) is Annotated:
        kind, *annotations = get_args(kind)
        has_gaps = POSITIONAL in annotations
    if get_origin(kind) in (list, tuple, frozenset):
        parts = [part.strip() for part in text.split(",")]
        return [part for part in parts if part] if not (has_gaps and any(parts)) else parts
    return msgspec.to_builtins(msgspec.convert(text, field.type, strict=False))


def _is_json(text: str) -> bool:
    """Whether it is an object or a list; a list with commas may begin with an IPv6 address in brackets."""
    start = text.lstrip()
    return start.startswith("{") or (start.startswith("[") and start[1:].lstrip()[:1] in ('"', "[", "{", "]"))
