"""What a causal network remembers between the pieces of a row.

A piece of a row comes out as it would in the whole row if every convolution knows the frames
before the piece, and every attention the keys and values of what it may look back at.
"""

from __future__ import annotations

import torch
from torch import Tensor

CONTEXT = 2
"""Frames that every convolution looks back."""


class Carry:
    """Hands a network, in the order of its layers, what it kept, and collects what it will need next.

    Args:
        keys: keys and values of the past, ``[layers, 2, B, heads, P, d]``; P may be 0.
        contexts: inputs of all convolutions before the piece, ``[B, C, 2]`` with C the sum of their
            channels; zero before a row's beginning.
        lengths: of the piece, without padding; i64 ``[B]``.
        keep: whether to collect; else nothing is new.
    """

    def __init__(self, keys: Tensor, contexts: Tensor, lengths: Tensor, *, keep: bool) -> None:
        self._keep = keep
        self._keys = keys
        self._contexts = contexts
        self._last = lengths[:, None, None] + torch.arange(CONTEXT, device=lengths.device)
        self._layers: list[Tensor] = []
        self._ends: list[Tensor] = []
        self._layer = 0
        self._channel = 0

    def before(self, x: Tensor) -> Tensor:
        """A convolution's input ``[B, C, T]`` with the two frames before it: ``[B, C, 2+T]``."""
        channels = x.shape[1]
        joined = torch.cat([self._contexts[:, self._channel : self._channel + channels], x], dim=2)
        self._channel += channels
        if self._keep:
            self._ends.append(joined.gather(2, self._last.expand(-1, channels, -1)))
        return joined

    def attend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values ``[B, heads, T, d]`` behind those of the past: ``[B, heads, P+T, d]``."""
        new = torch.stack([key, value])
        keys, values = torch.cat([self._keys[self._layer], new], dim=3)
        self._layer += 1
        if self._keep:
            self._layers.append(new)
        return keys, values

    def new_keys(self) -> Tensor:
        """Keys and values of the piece, ``[layers, 2, B, heads, T, d]``."""
        return torch.stack(self._layers) if self._layers else self._keys[:, :, :, :, :0]

    def new_contexts(self) -> Tensor:
        """The contexts of what follows the piece, ``[B, C, 2]``."""
        return torch.cat(self._ends, dim=1) if self._ends else self._contexts
