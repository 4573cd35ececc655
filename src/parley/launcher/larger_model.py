"""The language model of the profile open on a machine where no setting chooses one.

On a machine with enough cores and memory the first start brings the largest known model and measures all
known ones (:mod:`parley.launcher.advice`). What was found is kept beside the weights, for this machine.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from parley.launcher.options import OPEN_PROFILE, ServerOptions
from parley.llm.known_models import KNOWN_MODELS
from parley.runtime.parameters import Parameters
from parley.runtime.sessions import count_cores
from parley.runtime.weights import models_dir, weights_variable

ENOUGH_CORES = 4
"""On fewer cores recognition and voice take the model's time in a call."""
LARGEST = list(KNOWN_MODELS)[-1]
_VARIABLES = (weights_variable("qwen3"), "PARLEY_QWEN3_WEIGHTS", "PARLEY_VOICE_AGENT_LLM")
_ENOUGH_BYTES = 8 << 30
_FILE = "language-model.json"


def keep_advice(folder: Path, weights: str, *, is_complete: bool = True) -> None:
    """Write the model to serve on this machine, empty: the profile's; if not complete, it holds for a day."""
    limit = {} if is_complete else {"until": time.time() + 24 * 3600}
    (folder / _FILE).write_text(json.dumps({**machine(), "weights": weights, **limit}) + "\n", "utf-8")


def read_advice(folder: Path) -> str | None:
    """What :func:`keep_advice` has written on this machine; None: nothing that holds."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        kept = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        if kept.items() >= machine().items() and time.time() < kept.get("until", float("inf")):
            return str(kept.get("weights", ""))
    return None


def is_to_measure(options: ServerOptions, environment: Mapping[str, str]) -> bool:
    """Whether the larger model may be the better default here, and that is not known yet."""
    return (
        _is_open(options, environment)
        and count_cores() >= ENOUGH_CORES
        and psutil.virtual_memory().available >= _ENOUGH_BYTES
        and read_advice(weights_folder(options, environment)) is None
    )


def with_advised_model(options: ServerOptions, environment: Mapping[str, str]) -> ServerOptions:
    """The options with the model that was found to answer in time, if its weights are here."""
    environment = {**environment, **options.environment}
    if not _is_open(options, environment):
        return options
    folder = weights_folder(options, environment)
    weights = read_advice(folder)
    if weights is None or weights not in KNOWN_MODELS or not (folder / weights).is_dir():
        return options
    chosen = {**options.environment, weights_variable("qwen3"): weights}
    return dataclasses.replace(options, environment=chosen)


def weights_folder(options: ServerOptions, environment: Mapping[str, str]) -> Path:
    """The folder of all weights."""
    model = options.model_repository / "qwen3"
    return models_dir(Parameters(model.name, {}, model_dir=model, environment=environment))


def _is_open(options: ServerOptions, environment: Mapping[str, str]) -> bool:
    return options.profile == OPEN_PROFILE and not any(map(environment.get, _VARIABLES))


def machine() -> dict[str, str | float]:
    """What a measurement holds for."""
    return {"machine": platform.node(), "cores": count_cores()}
