"""A low-rank adapter (LoRA) in the layout of the library peft, to be merged into the matrices."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from qwen_gguf.source import ConversionError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def factor_names(matrix: str) -> tuple[str, str]:
    """What the factors of a matrix are called: ``[rank, in]`` and ``[out, rank]``."""
    return f"base_model.model.{matrix}.lora_A.weight", f"base_model.model.{matrix}.lora_B.weight"


class Adapter:
    """Two factors for some of the matrices.

    Args:
        folder: with ``adapter_config.json`` and ``adapter_model.safetensors``.

    Raises:
        ConversionError: it is not an adapter that can be merged.
    """

    def __init__(self, folder: Path) -> None:
        try:
            config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            self._scale = float(config["lora_alpha"]) / float(config["r"])
            kind = config["peft_type"]
            self._factors = load_file(folder / WEIGHTS)
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, SafetensorError) as error:
            raise ConversionError(f"{folder} is not an adapter: {error}") from error
        if kind != "LORA" or config.get("use_rslora") or config.get("use_dora"):
            raise ConversionError(f"{folder} is an adapter of a kind that cannot be merged: {kind}")
        self._folder = folder
        self._left = set(self._factors)

    def merged(self, name: str, matrix: Tensor) -> Tensor:
        """A matrix f32 ``[out, in]`` with what the adapter adds to it.

        Raises:
            ConversionError: the factors are of another shape, or the sum has values that are no numbers.
        """
        down, up = factor_names(name)
        if not {down, up} <= self._factors.keys():
            return matrix
        first, second = self._factors[down].float(), self._factors[up].float()
        if (second.shape[0], first.shape[1]) != tuple(matrix.shape) or first.shape[0] != second.shape[1]:
            raise ConversionError(
                f"{self._folder} does not fit: {name} is {tuple(matrix.shape)} in the model"
            )
        self._left -= {down, up}
        merged = matrix + self._scale * (second @ first)
        if not bool(torch.isfinite(merged).all()):
            raise ConversionError(f"{self._folder} makes {name} hold values that are no numbers")
        return merged

    def check_used(self) -> None:
        """Make sure that nothing was left over.

        Raises:
            ConversionError: it has factors for matrices that the model does not have.
        """
        if self._left:
            raise ConversionError(f"{self._folder} is of another model: there is no {min(self._left)}")
