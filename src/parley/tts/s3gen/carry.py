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
    """Hands a network, in the order of its layers, what it kept, and takes what it will need next.

    Args:
        keys: keys and values of the past and room for those of the piece behind them,
            ``[layers, 2, B, heads, P+T, d]``; None if there is no past and nothing is to be kept.
        contexts: inputs of all convolutions before the piece, ``[B, C, 2]`` with C the sum of their
            channels; zero before a row's beginning.
        lengths: of the piece, without padding; i64 ``[B]``.
    """

    def __init__(self, keys: Tensor | None, contexts: Tensor, lengths: Tensor) -> None:
        self._keys = keys
        self._contexts = contexts
        self._last = lengths[:, None, None] + torch.arange(CONTEXT, device=lengths.device)
        self._new: list[Tensor] = []
        self._ends: list[Tensor] = []
        self._layer = 0
        self._channel = 0

    def before(self, x: Tensor) -> Tensor:
        """A convolution's input ``[B, C, T]`` with the two frames before it: ``[B, C, 2+T]``."""
        channels = x.shape[1]
        joined = torch.cat([self._contexts[:, self._channel : self._channel + channels], x], dim=2)
        self._channel += channels
        if self._keys is not None:
            self._ends.append(joined.gather(2, self._last.expand(-1, channels, -1)))
        return joined

    def attend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values ``[B, heads, T, d]`` behind those of the past: ``[B, heads, P+T, d]``."""
        if self._keys is None:
            return key, value
        kept = self._keys[self._layer]
        self._layer += 1
        length = key.shape[2]
        if torch.compiler.is_compiling():  # a CUDA graph must not write to what it is given
            new = torch.stack([key, value])
            self._new.append(new)
            kept = torch.cat([kept[:, :, :, :-length], new], dim=3)
        else:
            kept[0, :, :, -length:] = key
            kept[1, :, :, -length:] = value
        return kept[0], kept[1]

    def new_keys(self) -> Tensor | None:
        """What belongs into the room, ``[layers, 2, B, heads, T, d]``; None if it is there already."""
        return torch.stack(self._new) if self._new else None

    def new_contexts(self) -> Tensor:
        """The contexts of what follows the piece, ``[B, C, 2]``."""
        return torch.cat(self._ends, dim=1) if self._ends else self._contexts
