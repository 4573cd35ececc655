"""The state of many streams in preallocated arrays, of which a step touches only its own rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.errors import OverloadedError

Rows: TypeAlias = dict[str, NDArray[Any]]
"""Arrays by name, all of the same length: one row for each of some streams."""


class SlotArrays:
    """One row of every array for each slot; a slot belongs to whoever acquired it.

    A step gathers the rows of its streams, works on these copies, and scatters what has come of
    them when it is sure: whatever fails before leaves no trace here, and the rows of streams that
    are not in the step are never read or written.
    """

    def __init__(self, slots: int, initial: Mapping[str, NDArray[Any]]) -> None:
        """Allocate.

        Args:
            slots: rows of every array.
            initial: by name, what a row holds when its slot is acquired.
        """
        self._initial = {name: value.copy() for name, value in initial.items()}
        # Memory that nobody has touched is not taken from the system: idle slots cost nothing.
        self._arrays = {
            name: np.zeros((slots, *value.shape), value.dtype) for name, value in self._initial.items()
        }
        self._free = list(range(slots - 1, -1, -1))
        self._slots = slots

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    def acquire(self) -> int:
        """Take a slot, with the initial values in its row.

        Raises:
            OverloadedError: all slots are taken.
        """
        if not self._free:
            raise OverloadedError(f"all {self._slots} utterances that can be heard at once are being spoken")
        slot = self._free.pop()
        for name, value in self._initial.items():
            self._arrays[name][slot] = value
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back that was acquired and not yet given back."""
        assert slot not in self._free, f"slot {slot} was given back twice"
        self._free.append(slot)

    def gather(self, slots: NDArray[np.int64]) -> Rows:
        """Copies of some rows, in the order of ``slots``: i64 ``[B]``."""
        return {name: array[slots] for name, array in self._arrays.items()}

    def scatter(self, slots: NDArray[np.int64], rows: Rows) -> None:
        """Write rows back: ``rows[name][i]`` to slot ``slots[i]``."""
        for name, array in self._arrays.items():
            array[slots] = rows[name]


def take(rows: Rows, chosen: NDArray[np.int64], names: Sequence[str]) -> Rows:
    """Some of the rows of some arrays; all rows, in order, are not copied."""
    return {name: rows[name] if len(chosen) == len(rows[name]) else rows[name][chosen] for name in names}


def put(rows: Rows, chosen: NDArray[np.int64], values: Mapping[str, NDArray[Any]]) -> None:
    """Replace some rows by new ones; all of them, in order, are not copied."""
    for name, value in values.items():
        if len(chosen) == len(rows[name]):
            rows[name] = value
        else:
            rows[name][chosen] = value
