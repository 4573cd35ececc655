"""What is said to ``parakeet_decoder``, and what it answers, for encoded speech that comes in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.asr.transducer import Tokens
from parley.inference import Tensor

CARRIED = ("TARGET", "HIDDEN", "CELL", "SKIP")
"""Inputs that say where the row's previous piece ended; an output ``NEXT_<name>`` gives each."""
TOKEN_OUTPUTS = ("TOKENS", "FRAMES", "DURATIONS", "CONFIDENCES", "TOKEN_COUNT")
PIECE_OUTPUTS = (*TOKEN_OUTPUTS, *(f"NEXT_{name}" for name in CARRIED))

RowState: TypeAlias = Mapping[str, Tensor]
"""Where one row's decoding stands: the tensors of :data:`CARRIED`, each ``[1, ...]``."""


def piece_inputs(
    encoded: NDArray[np.float32], lengths: NDArray[np.int64], states: Sequence[RowState] | None
) -> dict[str, Tensor]:
    """The decoder's inputs.

    Args:
        encoded: f32 ``[B, D, T']``.
        lengths: i64 ``[B]``, real frames of each row.
        states: what each row's previous piece left; None: these are the first.
    """
    inputs: dict[str, Tensor] = {"ENCODED": encoded, "ENCODED_LENGTH": lengths[:, None]}
    if states is not None:
        inputs |= {name: np.concatenate([state[name] for state in states]) for name in CARRIED}
    return inputs


def read_tokens(outputs: Mapping[str, Tensor]) -> list[Tokens]:
    """Each row's tokens, from :data:`TOKEN_OUTPUTS`."""
    return [
        Tokens(
            outputs["TOKENS"][row, :count],
            outputs["FRAMES"][row, :count],
            outputs["DURATIONS"][row, :count],
            outputs["CONFIDENCES"][row, :count],
        )
        for row, count in enumerate(outputs["TOKEN_COUNT"][:, 0].tolist())
    ]


def read_states(outputs: Mapping[str, Tensor]) -> list[RowState]:
    """Each row's state, from the ``NEXT_`` outputs."""
    return [
        {name: outputs[f"NEXT_{name}"][row : row + 1] for name in CARRIED}
        for row in range(len(outputs["TOKEN_COUNT"]))
    ]
