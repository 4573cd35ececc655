"""Memory that is used again."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Holds the largest tensor it was ever asked for, and hands out its beginning.

    A CPU's allocator returns large blocks to the system, and getting them anew costs more than
    filling them.
    """

    def __init__(self) -> None:
        self._memory = torch.zeros(0)

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of ``like``'s kind with any content, until the next call."""
        size = math.prod(shape)
        if len(self._memory) < size or self._memory.dtype != like.dtype or self._memory.device != like.device:
            self._memory = torch.zeros(0)  # first, so that both are never there
            self._memory = like.new_zeros(size)
        return self._memory[:size].view(shape)
