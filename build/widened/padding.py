"""How the tensors of a product grow."""

from __future__ import annotations

import torch
from torch import Tensor


def pad(tensor: Tensor, *shape: int) -> Tensor:
    """A tensor of a larger shape with ``tensor`` in its first corner and zeros elsewhere."""
    padded = tensor.new_zeros(shape)
    padded[tuple(slice(size) for size in tensor.shape)] = tensor
    return padded


def pad_inputs(tensor: Tensor, size: int) -> Tensor:
    """A product that reads the first of ``size`` inputs; a bias as it is."""
    return pad(tensor, len(tensor), size) if tensor.ndim > 1 else tensor


def pad_outputs(tensor: Tensor, size: int) -> Tensor:
    """A product, or its bias, with ``size`` outputs, of which the added ones are zero."""
    return pad(tensor, size, *tensor.shape[1:])


def repeat(tensor: Tensor, copies: int) -> Tensor:
    """The first axis ``copies`` times: what is written to each copy of a repeated value."""
    return tensor.repeat(copies, *[1] * (tensor.ndim - 1))


def place(tensor: Tensor, places: Tensor, size: int, axis: int) -> Tensor:
    """An axis of a new ``size``, zero but at ``places``: i64, where its entries go."""
    shape = list(tensor.shape)
    shape[axis] = size
    return tensor.new_zeros(shape).index_copy_(axis, places, tensor)


def head_places(heads: int, head: int, wide_head: int) -> Tensor:
    """Where the entries of so many heads go if each grows from ``head`` to ``wide_head``."""
    return (torch.arange(heads)[:, None] * wide_head + torch.arange(head)).flatten()
