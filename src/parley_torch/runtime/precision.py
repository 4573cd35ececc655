"""Number formats of networks on torch, and which of them a device has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from parley.errors import ModelLoadingError
from parley.runtime.gpu_plan import BFLOAT16_CAPABILITY
from parley.runtime.parameters import Parameters

PRECISIONS: Mapping[str, torch.dtype] = MappingProxyType(
    {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
)
"""By the names that settings have for them."""
AUTO_PRECISION = "auto"
_BFLOAT16 = "bfloat16"


def choose_precision(
    parameters: Parameters, device: torch.device, *, allowed: Sequence[str], otherwise: str
) -> torch.dtype:
    """The format that the setting ``precision`` names.

    Args:
        parameters: of the model. ``auto`` takes bfloat16 on a GPU that has it, and float32 on a CPU.
        device: where the network runs.
        allowed: names of :data:`PRECISIONS`.
        otherwise: what ``auto`` takes on a GPU without bfloat16.

    Raises:
        ModelLoadingError: it is another name, or bfloat16 and the GPU has none.
    """
    named = parameters.choice("precision", "float32", (*allowed, AUTO_PRECISION))
    on_gpu = device.type == "cuda"
    # PyTorch would emulate it.
    lacks = on_gpu and torch.cuda.get_device_capability(device) < BFLOAT16_CAPABILITY
    if named == AUTO_PRECISION:
        named = "float32" if not on_gpu else otherwise if lacks else _BFLOAT16
    if named == _BFLOAT16 and lacks:
        raise ModelLoadingError(
            f"precision is bfloat16, which this GPU does not have; auto would take {otherwise}"
        )
    return PRECISIONS[named]
