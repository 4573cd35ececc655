"""Language models that the project knows, by the folder of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parley.runtime.parameters import Parameters
from parley.runtime.weights import weights_variable


@dataclass(frozen=True)
class KnownModel:
    """What the weights need, and what they are good for."""

    title: str
    settings: Mapping[str, str]
    """Of the model ``qwen3``, in the place of those of a profile with other weights."""
    is_demonstration: bool = False
    """Whether it shows how calls work, and is too often wrong to be relied on."""


KNOWN_MODELS: Mapping[str, KnownModel] = {
    "tiny-qwen3": KnownModel("a Qwen3 of 1.3 million parameters", {}, is_demonstration=True),
    "qwen2.5-coder-0.5b-w8a8": KnownModel(
        "Qwen2.5-Coder 0.5B, with an adapter",
        {"tool_parser": "python", "tool_examples": "false"},
        is_demonstration=True,
    ),
    "qwen2.5-coder-1.5b-w8a8": KnownModel(
        "Qwen2.5-Coder 1.5B, with an adapter",
        # A token of a conversation takes 28 kB.
        {"tool_parser": "python", "tool_examples": "false", "kv_cache_gib": "0.5"},
    ),
}
"""Those that are made or trained for the profiles without a GPU, the smallest first."""
DEMONSTRATION = "a demonstration: often wrong"


def is_demonstration(weights: str) -> bool:
    """Whether the weights of this name are those of a demonstration."""
    return weights in KNOWN_MODELS and KNOWN_MODELS[weights].is_demonstration


def with_known_settings(parameters: Parameters) -> Parameters:
    """The settings of a model whose weights the environment chooses, as far as they are known to need others.

    A variable of the environment for a single setting wins.
    """
    chosen = [weights_variable(parameters.model), parameters.variable("weights")]
    name = next((Path(value).name for one in chosen if (value := parameters.environment.get(one))), "")
    known = KNOWN_MODELS.get(name)
    return parameters if known is None else parameters.replaced(known.settings)
