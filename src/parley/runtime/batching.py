"""Many requests in one run of a network, without letting one spoil the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from parley.errors import InvalidInputError, ModelLoadingError, ParleyError
from parley.inference import Tensor

Tensors = Mapping[str, Tensor]


def parse_sizes(text: str, name: str, *, repeated: bool = False) -> tuple[int, ...]:
    """Read a rising list of positive numbers such as ``"192,256,320"``; empty text is an empty list.

    Args:
        text: the list.
        name: of the setting.
        repeated: whether a number may follow itself.

    Raises:
        ModelLoadingError: it is something else.
    """
    try:
        sizes = tuple(int(size) for size in text.split(",")) if text else ()
    except ValueError as error:
        raise ModelLoadingError(f"{name} {text!r} must look like 1,2,4") from error
    rising = sorted(sizes if repeated else set(sizes))
    if list(sizes) != rising or any(size < 1 for size in sizes):
        raise ModelLoadingError(f"{name} {text!r} must be rising positive numbers")
    return sizes


def round_up(value: int, sizes: Sequence[int]) -> int:
    """The smallest size that is at least ``value``; ``value`` itself if none is."""
    return next((size for size in sizes if size >= value), value)


def stack_rows(arrays: Sequence[Tensor]) -> Tensor:
    """One array with the rows of all, zero-padded to the longest of each dimension.

    Args:
        arrays: of equal rank and type, each ``[rows, ...]``.
    """
    shape = [sum(len(array) for array in arrays)]
    shape += [max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True)]
    stacked = np.zeros(shape, arrays[0].dtype)
    row = 0
    for array in arrays:
        stacked[(slice(row, row + len(array)), *(slice(0, size) for size in array.shape[1:]))] = array
        row += len(array)
    return stacked


def split_rows(array: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Undo the first dimension of :func:`stack_rows`; the padding stays."""
    return np.split(array, np.cumsum(counts)[:-1])


def column(array: Tensor, name: str) -> NDArray[np.int64]:
    """The values of a tensor ``[rows, 1]``: i64 ``[rows]``.

    Raises:
        InvalidInputError: the tensor has another shape.
    """
    if array.ndim != 2 or array.shape[1] != 1:
        raise InvalidInputError(f"{name} has shape {list(array.shape)}; it must be [rows, 1]")
    return np.asarray(array[:, 0], np.int64)


def widen(request: Tensors, name: str, width: int) -> Tensors:
    """``[B, 1, T]`` repeated to ``[B, width, T]``: the canaries send one row for every checkpoint."""
    values = request[name]
    if values.ndim != 3 or values.shape[1] != 1:
        return request
    return {**request, name: np.broadcast_to(values, (len(values), width, values.shape[2]))}


def check_lengths(request: Tensors, name: str, *, frames: int, minimum: int) -> None:
    """Refuse lengths (i64 ``[B, 1]``) outside ``minimum`` to ``frames``."""
    lengths = column(request[name], name)
    if (lengths < minimum).any() or (lengths > frames).any():
        raise InvalidInputError(f"{name} must be {minimum} to {frames}")


def check_finite(values: Tensor, name: str) -> None:
    """Refuse NaN and infinity."""
    if not np.isfinite(values).all():
        raise InvalidInputError(f"{name} has values that are not finite")


def run_together(
    requests: Sequence[Tensors],
    check: Callable[[Tensors], None],
    run: Callable[[Sequence[Tensors]], Sequence[Tensors]],
) -> list[Tensors | ParleyError]:
    """Serve all requests in one run.

    A request that ``check`` refuses fails alone. If the common run fails, each request is run by
    itself, so that only those fail that cannot be served.

    Args:
        requests: their input tensors.
        check: raises a ``ParleyError`` for inputs that must not be run.
        run: returns the outputs of each request, or raises a ``ParleyError``.

    Returns:
        For each request its outputs or its error.
    """
    results: list[Tensors | ParleyError | None] = [_refusal(check, request) for request in requests]
    good = [index for index, result in enumerate(results) if result is None]
    try:
        outputs: Sequence[Tensors | ParleyError] = run([requests[index] for index in good]) if good else []
    except ParleyError as error:
        outputs = [error] if len(good) == 1 else [_alone(run, requests[index]) for index in good]
    for index, output in zip(good, outputs, strict=True):
        results[index] = output
    return [result for result in results if result is not None]


def _refusal(check: Callable[[Tensors], None], request: Tensors) -> ParleyError | None:
    try:
        check(request)
    except ParleyError as error:
        return error
    return None


def _alone(run: Callable[[Sequence[Tensors]], Sequence[Tensors]], request: Tensors) -> Tensors | ParleyError:
    try:
        return run([request])[0]
    except ParleyError as error:
        return error
