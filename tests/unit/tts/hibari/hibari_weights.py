"""Weights of Hibari's interface that hum."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_onnx import FLOAT, INT64, constant, model, node, value

BINS = 601
FRAME = 600


def write_weights(folder: Path, *, loudness: float = -5.0, pitch_hz: float = 200.0) -> Path:
    """A symbol lasts its number of frames, at most three; ``loudness``: logarithm of the harmonics."""
    parts = {"lh": loudness, "theta": 0.0, "ln": -12.0, "lr": -30.0, "phi": 0.0}
    graph = model(
        value(11, "ids", INT64, 1, "length"),
        value(11, "speed", FLOAT, 1),
        *(value(12, name, FLOAT, 1, BINS, "frames") for name in parts),
        value(12, "f0", FLOAT, 1, "frames"),
        constant("least", np.float32(1)),
        constant("most", np.float32(3)),
        constant("axis", np.array([0], np.int64)),
        constant("two", np.array([2], np.int64)),
        constant("bins", np.array([1, BINS], np.int64)),
        constant("one", np.array([1], np.int64)),
        constant("flat", np.array([-1], np.int64)),
        constant("pitch", np.full((1, 1), pitch_hz, np.float32)),
        *(constant(f"{name} value", np.full((1, 1, 1), level, np.float32)) for name, level in parts.items()),
        node("Reshape", "ids flat", "symbols"),
        node("Cast", "symbols", "numbers", to=FLOAT),
        node("Clip", "numbers least most", "clipped"),
        node("Div", "clipped speed", "/Clip_output_0"),
        node("Cast", "/Clip_output_0", "durations", to=INT64),
        node("ReduceSum", "durations axis", "length", keepdims=1),
        node("Mul", "length two", "count"),
        node("Concat", "bins count", "shape", axis=0),
        node("Concat", "one count", "pitch_shape", axis=0),
        *(node("Expand", f"{name} value|shape", name) for name in parts),
        node("Expand", "pitch pitch_shape", "f0"),
    )
    folder.mkdir(parents=True)
    (folder / "hibari.onnx").write_bytes(graph)
    return folder
