"""Settings of a model: the ``parameters`` of its Triton configuration, and the environment.

A configuration file holds what a profile needs; an operator overrides one value without a new
file by setting ``PARLEY_<MODEL>_<NAME>``, for example ``PARLEY_QWEN3_MAX_REQUESTS=32``. Between both are the
settings of the GPU's memory plan (:mod:`parley.runtime.gpu_plan`), for models whose file asks for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from parley.errors import ModelLoadingError
from parley.runtime.gpu_plan import PLAN_SETTING, planned_settings

LOADED_MODELS_VARIABLE = "PARLEY_LOADED_MODELS"
"""Names of the models that the server loads, with commas; set by the launcher."""

T = TypeVar("T")


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

    def text(self, name: str, default: str) -> str:
        """A setting as text. Unset and empty are the same."""
        raw = self._raw(name)
        return raw[0] if raw else default

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """A setting that must be one of ``allowed``."""
        raw = self._raw(name)
        if raw is None:
            return default
        value, source = raw
        if value not in allowed:
            raise ModelLoadingError(f"{source} is {value!r}; it must be one of {', '.join(allowed)}")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        """``true`` or ``false``."""
        return self.choice(name, str(default).lower(), ("true", "false")) == "true"

    def names(self, name: str, default: str) -> tuple[str, ...]:
        """A list that is written with commas; blanks around its items do not count."""
        return tuple(item.strip() for item in self.text(name, default).split(",") if item.strip())

    def integer(self, name: str, default: int, *, minimum: int = 0, maximum: int | None = None) -> int:
        """A whole number, at least ``minimum`` and at most ``maximum``."""
        raw = self._raw(name)
        if raw is None:
            return default
        try:
            value = int(raw[0])
        except ValueError as error:
            raise ModelLoadingError(f"{raw[1]} is {raw[0]!r}; it must be a whole number") from error
        if maximum is not None and value > maximum:
            raise ModelLoadingError(f"{raw[1]} is {value}; it must be at most {maximum}")
        return _at_least(value, minimum, raw[1])

    def number(self, name: str, default: float, *, minimum: float = 0.0) -> float:
        """A number, at least ``minimum``."""
        raw = self._raw(name)
        if raw is None:
            return default
        try:
            value = float(raw[0])
        except ValueError as error:
            raise ModelLoadingError(f"{raw[1]} is {raw[0]!r}; it must be a number") from error
        return _at_least(value, minimum, raw[1])


def _at_least(value: T, minimum: T, source: str) -> T:
    # NaN compares false with everything, so ask for what is wanted rather than for what is not.
    if not value >= minimum:  # type: ignore[operator]
        raise ModelLoadingError(f"{source} is {value}; it must be at least {minimum}")
    return value
