"""How far an exported network is from its original: the measures, what is allowed, and the report.

An exporter runs both on the same inputs, measures the differences with these functions, and writes nothing
where :func:`check` fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ExportError(Exception):
    """Something cannot be exported, or is not written; the message says why, and what to do."""


def check(
    exported: str, original: str, differences: Mapping[str, float], limits: Mapping[str, float]
) -> None:
    """Print the differences of an export from its original, and compare them with what is allowed.

    Raises:
        ExportError: a difference is larger, or not a number.
    """
    measured = ", ".join(f"{measure} {value:.1e}" for measure, value in differences.items())
    note(f"{exported}: differences from {original}: {measured}")
    excess = [
        f"{measure} differs by {value:.1e}, and {limits[measure]:.1e} is allowed"
        for measure, value in differences.items()
        if not value <= limits[measure]  # so that NaN fails
    ]
    if excess:
        raise ExportError(
            f"{exported} is not written, because it is too far from {original}: {'; '.join(excess)}"
        )


def relative_difference(found: Any, expected: Any) -> float:
    """Root of the mean squares of the differences over that of ``expected``; NaN where the shapes differ.

    Args:
        found: an array or a tensor on the CPU.
        expected: the original's.
    """
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return float("nan")
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-12))


def largest_difference(found: Any, expected: Any) -> float:
    """The largest difference of two values; NaN where the shapes differ; see :func:`relative_difference`."""
    found, expected = np.asarray(found), np.asarray(expected)
    return float(np.abs(found - expected).max()) if found.shape == expected.shape else float("nan")


def token_difference(found: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> float:
    """Share of the expected tokens that are replaced, removed or added, in all texts together."""
    from rapidfuzz.distance import Levenshtein  # not there where models are served

    wrong = sum(Levenshtein.distance(one, other) for one, other in zip(expected, found, strict=True))
    return wrong / max(sum(map(len, expected)), 1)


def read_recordings(folder: Path, count: int) -> list[NDArray[np.float32]]:
    """Inputs for recognisers: so many recordings with speech that ``manifest.json`` lists, f32 within ±1."""
    import soundfile

    entries = [entry for entry in json.loads((folder / "manifest.json").read_text()) if entry["text"]]
    step = max(1, len(entries) // count)
    return [soundfile.read(folder / entry["file"], dtype="float32")[0] for entry in entries[::step][:count]]


def note(text: str) -> None:
    """Print what an export has done."""
    print(text, file=sys.stderr, flush=True)
