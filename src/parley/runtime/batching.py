"""Many requests in one run of a network, without letting one spoil the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError, InvalidInputError, ModelLoadingError, ParleyError
from parley.inference import Tensor

Tensors = Mapping[str, Tensor]


def parse_sizes(text: str, name: str, *, repeated: bool = False) -> tuple[int, ...]:
    """Read a rising list of positive numbers such as ``"192,256,320"``; empty text is an empty list.

    ``name``: of the setting; ``repeated``: whether a number may follow itself.

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


class RowsNotFiniteError(InferenceError):
    """Values of some rows of a run are not finite; the others may be run again without these."""

    def __init__(self, what: str, rows: Sequence[int]) -> None:
        super().__init__(f"{what} not finite")
        self.rows = tuple(rows)


def check_rows(
    finite: NDArray[np.bool_],
    what: str,
    *,
    rows: NDArray[np.int64] | None = None,
    independent: bool = False,
) -> None:
    """Refuse the rows of a run whose values are not finite.

    Args:
        finite: ``[n]``, whether all values of a line are.
        what: the values.
        rows: ``[n]``, of which row each line is; None: each is one.
        independent: whether a row never changes another one. In a quantised network rows share their scales,
            so that one may spoil all.

    Raises:
        RowsNotFiniteError: some rows are not finite.
        InferenceError: none of several rows is, and it cannot be said which one is at fault.
    """
    if finite.all():
        return
    owners = np.arange(len(finite)) if rows is None else rows
    failed = np.unique(owners[~finite])
    count = len(np.unique(owners))
    if not independent and len(failed) == count > 1:
        raise InferenceError(f"{what} not finite")
    raise RowsNotFiniteError(what, failed.tolist())


def run_together(
    requests: Sequence[Tensors],
    check: Callable[[Tensors], None],
    run: Callable[[Sequence[Tensors]], Sequence[Tensors]],
) -> list[Tensors | ParleyError]:
    """Serve all requests in one run.

    A request that ``check`` refuses fails alone. If some rows of the common run are not finite, their
    requests fail, and the others are run again together. If the run fails for another reason, each request
    is run by itself, so that only those fail that cannot be served.

    Args:
        requests: their input tensors.
        check: raises a ``ParleyError`` for inputs that must not be run.
        run: returns the outputs of each request, or raises a ``ParleyError``.

    Returns:
        For each request its outputs or its error.
    """
    results: list[Tensors | ParleyError | None] = [_refusal(check, request) for request in requests]
    while left := [index for index, result in enumerate(results) if result is None]:
        own = [requests[index] for index in left]
        outputs: Sequence[Tensors | ParleyError | None]
        try:
            outputs = run(own)
        except ParleyError as error:
            failed = _failed(error, own)
            if any(failed):
                outputs = [error if is_failed else None for is_failed in failed]
            else:
                outputs = [error] if len(own) == 1 else [_alone(run, request) for request in own]
        for index, output in zip(left, outputs, strict=True):
            results[index] = output
    return [result for result in results if result is not None]


def _failed(error: ParleyError, requests: Sequence[Tensors]) -> list[bool]:
    """Which requests have rows that a common run named."""
    if not isinstance(error, RowsNotFiniteError):
        return [False] * len(requests)
    rows = [len(next(iter(request.values()))) for request in requests]
    ends = np.cumsum(rows).tolist()
    # A row behind them is padding.
    return [
        any(end - count <= row < end for row in error.rows) for count, end in zip(rows, ends, strict=True)
    ]


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
