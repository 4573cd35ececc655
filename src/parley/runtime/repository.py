"""The model repository's configurations, by profile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from parley.runtime.gpu_plan import GPU_PROFILE
from parley.runtime.parameters import Parameters


def config_path(folder: Path, profile: str) -> Path:
    """Path of a model's configuration in a profile; absent if the profile lacks the model."""
    if profile == GPU_PROFILE:
        return folder / "config.pbtxt"
    return folder / "configs" / f"{profile}.pbtxt"


def read_config_file(path: Path) -> Any:
    """A configuration (``ModelConfig``); None if there is none, or Triton will refuse it."""
    # Exporters, which have no client of Triton, import models for the networks' own names.
    from tritonclient.grpc import model_config_pb2  # noqa: PLC0415

    try:
        return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    except (FileNotFoundError, text_format.ParseError):
        return None


def read_parameters(folder: Path, profile: str, environment: Mapping[str, str]) -> Parameters | None:
    """A model's settings in a profile; None if there is no such model, or Triton will refuse it.

    ``environment`` overrides them, as it does for the model itself.
    """
    config = read_config_file(config_path(folder, profile))
    if config is None:
        return None
    values = {key: parameter.string_value for key, parameter in config.parameters.items()}
    return Parameters(folder.name, values, model_dir=folder, environment=environment)
