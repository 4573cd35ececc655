"""Settings of a model: the ``parameters`` of its Triton configuration, and the environment.

A configuration file holds what a profile needs; an operator overrides one value without a new
file by setting ``PARLEY_<MODEL>_<NAME>``, for example ``PARLEY_QWEN3_MAX_REQUESTS=32``. Between both are the
settings of the GPU's memory plan (:mod:`parley.runtime.gpu_plan`), for models whose file asks for it.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from msgspec.inspect import (
    BoolType,
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    StrType,
    StructType,
    UnionType,
    VarTupleType,
    type_info,
)

from parley.errors import ModelLoadingError
from parley.runtime.gpu_plan import PLAN_SETTING, planned_settings

LOADED_MODELS_VARIABLE = "PARLEY_LOADED_MODELS"
"""Names of the models that the server loads, with commas; set by the launcher."""

T = TypeVar("T")
SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)

Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[float, msgspec.Meta(ge=0.0)]
COMPUTED = msgspec.Meta(extra={"setting": False})
"""Marks a field of a settings struct that no parameter fills."""


def read_with(read: Callable[[str], Any]) -> msgspec.Meta:
    """Marks a field of a settings struct whose text ``read`` turns into the value."""
    return msgspec.Meta(extra={"read": read})


class Parameters:
    """The settings of one model.

    Attributes:
        model: name of the model.
        model_dir: its folder in the model repository.
        version: its version as Triton counts it, for example ``"1"``.
        instance: name of this instance of the model, for example ``"qwen3_0_0"``.
        device_id: number of the GPU of this instance.
        sequence_idle_s: time without a request after which Triton ends a sequence (seconds); 0: the model
            has no sequences.
        environment: where overrides are looked up.
    """

    def __init__(
        self,
        model: str,
        values: Mapping[str, str],
        *,
        model_dir: Path = Path(),
        version: str = "1",
        instance: str = "",
        device_id: int = 0,
        sequence_idle_s: float = 0.0,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.model = model
        self.device_id = device_id
        self.sequence_idle_s = sequence_idle_s
        self.instance = instance or model
        self.model_dir = model_dir
        self.version = version
        self.environment = environment
        self._values = dict(values)

    @classmethod
    def from_args(cls, args: Mapping[str, str], *, environment: Mapping[str, str] = os.environ) -> Parameters:
        """Read what Triton gives to a Python model's ``initialize``.

        Raises:
            ModelLoadingError: the memory plan of this GPU has no memory for the model.
        """
        config = json.loads(args["model_config"])
        values = {name: entry["string_value"] for name, entry in config.get("parameters", {}).items()}
        if values.get(PLAN_SETTING) == "true":
            values |= planned_settings(args["model_name"], environment)
        idle_us = config.get("sequence_batching", {}).get("max_sequence_idle_microseconds", 0)
        return cls(
            args["model_name"],
            values,
            model_dir=Path(args["model_repository"]),
            version=args["model_version"],
            instance=args.get("model_instance_name", ""),
            device_id=int(args.get("model_instance_device_id", "0")),
            sequence_idle_s=int(idle_us) / 1e6,
            environment=environment,
        )

    def replaced(self, values: Mapping[str, str]) -> Parameters:
        """These settings with other values of the configuration."""
        other = copy.copy(self)
        other._values = {**self._values, **values}  # noqa: SLF001 - same class
        return other

    @property
    def version_dir(self) -> Path:
        """The folder that holds this version's files."""
        return self.model_dir / self.version

    @property
    def repository(self) -> Path:
        """The model repository that the model was loaded from."""
        return self.model_dir.parent

    def variable(self, name: str) -> str:
        """The environment variable that overrides ``name``."""
        return f"PARLEY_{self.model}_{name}".upper().replace("-", "_")

    def _raw(self, name: str) -> tuple[str, str] | None:
        """The text of a setting and where it comes from; None when it is not set."""
        variable = self.variable(name)
        if self.environment.get(variable):
            return self.environment[variable], f"environment variable {variable}"
        if self._values.get(name):
            return self._values[name], f"parameter {name!r} of model {self.model}"
        return None

    def read(self, kind: type[SettingsT], **defaults: Any) -> SettingsT:
        """The settings that are fields of a struct, each within the bounds of its type.

        A list is written with commas. A field that is a struct has its settings beside the others.

        Args:
            kind: the struct; ``rename`` gives the names of its settings.
            defaults: by field, in the place of the struct's own.

        Raises:
            ModelLoadingError: a setting has a value that it cannot have.
        """
        values = dict(defaults)
        for field in msgspec.structs.fields(kind):
            info = type_info(field.type)
            if isinstance(info, StructType):
                values[field.name] = self.read(info.cls)
            elif is_setting(field) and (raw := self._raw(field.encode_name)) is not None:
                value = _decode(*raw, info, field.type)
                if value or not isinstance(value, tuple | dict):  # a list of nothing but commas is not set
                    values[field.name] = value
        return kind(**values)

    def text(self, name: str, default: str) -> str:
        """A setting as text. Unset and empty are the same."""
        raw = self._raw(name)
        return raw[0] if raw else default

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """A setting that must be one of ``allowed``."""
        raw = self._raw(name)
        return default if raw is None else _choice(*raw, allowed)

    def boolean(self, name: str, *, default: bool) -> bool:
        """``true`` or ``false``."""
        return self.choice(name, str(default).lower(), _BOOLEANS) == "true"

    def names(self, name: str, default: str) -> tuple[str, ...]:
        """A list that is written with commas; blanks around its items do not count."""
        return _names(self.text(name, default))

    def integer(self, name: str, default: int, *, minimum: int = 0, maximum: int | None = None) -> int:
        """A whole number, at least ``minimum`` and at most ``maximum``."""
        raw = self._raw(name)
        return default if raw is None else _number(*raw, int, minimum, maximum)

    def number(self, name: str, default: float, *, minimum: float = 0.0) -> float:
        """A number, at least ``minimum``."""
        raw = self._raw(name)
        return default if raw is None else _number(*raw, float, minimum, None)


def is_setting(field: msgspec.structs.FieldInfo) -> bool:
    """Whether a parameter may fill this field of a settings struct."""
    info = type_info(field.type)
    return not (isinstance(info, Metadata) and (info.extra or {}).get("setting") is False)


_BOOLEANS = ("true", "false")


def _decode(text: str, source: str, info: msgspec.inspect.Type, annotation: Any) -> Any:
    """The value of a setting; ``source``: where its text is from, for errors."""
    if isinstance(info, UnionType):  # None, where it is not set, and another type
        (info,) = (one for one in info.types if not isinstance(one, msgspec.inspect.NoneType))
    value: Any = text
    match info:
        case Metadata(extra={"read": read}):
            value = read(text)
        case BoolType():
            value = _choice(text, source, _BOOLEANS) == "true"
        case IntType():
            value = _number(text, source, int, info.ge, info.le)
        case FloatType():
            value = _number(text, source, float, info.ge, info.le)
        case LiteralType():
            value = _choice(text, source, get_args(annotation))
        case VarTupleType():
            value = _names(text)
        case _:
            assert isinstance(info, StrType), f"no text is read as {annotation}"
    return value


def _choice(value: str, source: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ModelLoadingError(f"{source} is {value!r}; it must be one of {', '.join(allowed)}")
    return value


def _names(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _number(text: str, source: str, kind: Callable[[str], T], minimum: T | None, maximum: T | None) -> T:
    try:
        value = kind(text)
    except ValueError as error:
        what = "a whole number" if kind is int else "a number"
        raise ModelLoadingError(f"{source} is {text!r}; it must be {what}") from error
    # NaN compares false with everything, so ask for what is wanted rather than for what is not.
    if minimum is not None and not value >= minimum:  # type: ignore[operator]
        raise ModelLoadingError(f"{source} is {value}; it must be at least {minimum}")
    if maximum is not None and not value <= maximum:  # type: ignore[operator]
        raise ModelLoadingError(f"{source} is {value}; it must be at most {maximum}")
    return value
