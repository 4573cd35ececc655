"""Reading published tensors, without ever running code from a file, and checking them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from comparison import ExportError

_NAMED = 5
"""Tensors that a message names."""


def read_pickled(path: Path) -> Any:
    """The content of a file that ``torch.save`` wrote: tensors and plain containers only.

    Raises:
        ExportError: it is missing or damaged, or holds anything else.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        # torch recommends to read it without the check; never do.
        reason = str(error).partition("\n")[0]
        raise ExportError(f"{path} cannot be read as tensors alone: {reason}") from error


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` or ``.pt`` file by name.

    Raises:
        ExportError: it is missing or damaged, or a value is not a finite number.
    """
    if path.suffix == ".safetensors":
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ExportError(f"{path} cannot be read: {error}") from error
    else:
        tensors = read_pickled(path)
        if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
            raise ExportError(f"{path} does not hold tensors by name")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ExportError(f"{path}: {name} holds values that are not numbers")
    return tensors


def write(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors as they are, each with memory of its own."""
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, path)


def check_shapes(path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, Sequence[int]]) -> None:
    """Compare with what must be there.

    Raises:
        ExportError: a tensor is missing, of another shape, or one too many; it is named.
    """
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = [
        f"{name} is {list(found[name])} and must be {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != tuple(shape)
    ]
    problems = [
        f"{kind}: {', '.join(names[:_NAMED])}{f' and {len(names) - _NAMED} more' * (len(names) > _NAMED)}"
        for kind, names in (
            ("missing", sorted(set(expected) - set(found))),
            ("unexpected", sorted(set(found) - set(expected))),
            ("of another shape", wrong),
        )
        if names
    ]
    if problems:
        raise ExportError(f"{path} has tensors {'; '.join(problems)}")
