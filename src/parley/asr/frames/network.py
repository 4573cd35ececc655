"""What the networks of all these families have in common: padding, runs, and what their files say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError, ModelLoadingError
from parley.runtime.onnx import Stop

UNBOUNDED = 1 << 16
"""Rows of a network whose batch axis is free."""


class OnnxNetwork:
    """A session whose inputs and outputs are known by their order; thread-safe.

    Args:
        session: of the file.
        role: what it is called in errors.
        inputs: how many it must have.
        outputs: how many it has at least.

    Raises:
        ModelLoadingError: it has others.
    """

    def __init__(self, session: Any, role: str, *, inputs: int, outputs: int) -> None:
        self._session = session
        self._role = role
        self.inputs = session.get_inputs()
        self.outputs = session.get_outputs()
        if len(self.inputs) != inputs or len(self.outputs) < outputs:
            names = ", ".join(tensor.name for tensor in self.inputs) or "nothing"
            raise ModelLoadingError(
                f"{role} takes {names} and has {len(self.outputs)} outputs; "
                f"it must take {inputs} inputs and have {outputs} outputs: is it one that streams?"
            )
        rows = self.inputs[0].shape[0]
        self.most_rows = rows if isinstance(rows, int) and rows > 0 else UNBOUNDED
        """Rows of one run."""

    def run(self, stop: Stop, *values: NDArray[Any]) -> list[Any]:
        """Run it; integers become those that it takes.

        Raises:
            InferenceError: it failed.
            StoppedError: it was stopped.
        """
        feed = {
            tensor.name: value.astype(np.int32) if tensor.type == "tensor(int32)" else value
            for tensor, value in zip(self.inputs, values, strict=True)
        }
        return stop.run(self._session, feed, [tensor.name for tensor in self.outputs])

    def check_width(self, place: int, axis: int, width: int, what: str) -> None:
        """Compare the size of an output, where the file fixes it.

        Raises:
            ModelLoadingError: it is another.
        """
        self._check(self.outputs[place], axis, width, what)

    def check_input(self, place: int, axis: int, width: int, what: str) -> None:
        """The same of an input."""
        self._check(self.inputs[place], axis, width, what)

    def _check(self, tensor: Any, axis: int, width: int, what: str) -> None:
        found = tensor.shape[axis]
        if isinstance(found, int) and found != width:
            raise ModelLoadingError(f"{tensor.name} of {self._role} has {found} {what}; expected are {width}")

    def metadata(self) -> Metadata:
        """What the file says of its model."""
        return Metadata(self._session.get_modelmeta().custom_metadata_map, self._role)


class Metadata:
    """What an ONNX file says of its model, by key."""

    def __init__(self, values: Mapping[str, str], role: str) -> None:
        self._values = values
        self._role = role

    def text(self, key: str, default: str | None = None) -> str:
        """A value as it is.

        Raises:
            ModelLoadingError: there is none, and no default.
        """
        value = self._values.get(key, default)
        if value is None:
            raise ModelLoadingError(f"the metadata of {self._role} has no {key}")
        return value

    def integer(self, key: str, default: str | None = None, *, minimum: int = 0) -> int:
        """A whole number.

        Raises:
            ModelLoadingError: there is none, or it is below the minimum.
        """
        value = self.text(key, default).strip()
        if not value.lstrip("-").isdecimal() or int(value) < minimum:
            raise ModelLoadingError(
                f"{key} in the metadata of {self._role} is {value!r}; it must be a number from {minimum} on"
            )
        return int(value)

    def numbers(self, key: str) -> NDArray[np.float32]:
        """Numbers with commas between them: f32 ``[n]``.

        Raises:
            ModelLoadingError: there are none, or one is no number.
        """
        try:
            found = np.array([float(number) for number in self.text(key).split(",")], np.float32)
        except ValueError:
            found = np.array([np.nan], np.float32)
        if not np.isfinite(found).all():
            raise ModelLoadingError(f"{key} in the metadata of {self._role} is not a list of numbers")
        return found


def pad_rows(
    rows: Sequence[NDArray[np.float32]], value: float
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows of different lengths as one array.

    Args:
        rows: f32 ``[frames, features]`` each.
        value: what follows the shorter ones.

    Returns:
        f32 ``[B, frames, features]`` and i64 ``[B]``, the length of each.
    """
    lengths = np.array([len(row) for row in rows], np.int64)
    padded = np.full((len(rows), int(lengths.max()), rows[0].shape[1]), value, np.float32)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded, lengths


def check_scores(scores: NDArray[np.float32], tokens: int) -> None:
    """Refuse scores ``[..., V]`` that no decoder can use.

    Raises:
        InferenceError: they are of another number of tokens, or not finite.
    """
    if scores.shape[-1] != tokens:
        raise InferenceError(f"the network scores {scores.shape[-1]} tokens; the vocabulary has {tokens}")
    if not np.isfinite(scores).all():
        raise InferenceError("the network's scores are not finite")
