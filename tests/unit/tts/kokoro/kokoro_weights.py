"""Weights of Kokoro's interface that hum."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_onnx import FLOAT, INT64, constant, model, node, value

from parley.tts.kokoro.voices import KNOWN_VOICES

FRAME = 600


def write_graph(path: Path, durations: str = "/encoder/Clip_output_0") -> None:
    """A symbol lasts its number of frames, at most three; the style's first value is the level."""
    graph = model(
        value(11, "input_ids", INT64, 1, "length"),
        value(11, "style", FLOAT, 1, 256),
        value(11, "speed", FLOAT, 1),
        value(12, "waveform", FLOAT, 1, "samples"),
        constant("least", np.float32(1)),
        constant("most", np.float32(3)),
        constant("frame", np.float32(FRAME)),
        constant("zero", np.int64(0)),
        constant("one", np.int64(1)),
        constant("pace", np.float32(2 * np.pi / 120)),
        constant("first", np.array([0], np.int64)),
        constant("rows", np.array([0], np.int64)),
        node("Cast", "input_ids", "numbers", to=FLOAT),
        node("Clip", "numbers least most", "clipped"),
        node("Div", "clipped speed", durations),
        node("ReduceSum", durations, "frames", keepdims=0),
        node("Mul", "frames frame", "length_f"),
        node("Cast", "length_f", "samples", to=INT64),
        node("Range", "zero samples one", "places"),
        node("Cast", "places", "places_f", to=FLOAT),
        node("Mul", "places_f pace", "angles"),
        node("Sin", "angles", "wave"),
        node("Gather", "style first", "level", axis=1),
        node("Mul", "wave level", "loud"),
        node("Identity", "loud", "waveform"),
    )
    path.write_bytes(graph)


def write_weights(folder: Path) -> Path:
    """A folder as the published one, with styles of ten lengths."""
    (folder / "voices").mkdir(parents=True)
    write_graph(folder / "kokoro-quantized.onnx")
    for number, voice in enumerate(KNOWN_VOICES):
        style = np.full((10, 1, 256), 0.1 + 0.01 * number, np.float32)
        style[:, 0, 0] += np.arange(10) / 1000
        style.tofile(folder / "voices" / f"{voice.name}.bin")
    return folder
