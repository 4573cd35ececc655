"""A voice that hums: a network of random weights with the tensors of Piper's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_onnx import FLOAT, INT64, constant, model, node, value

CHANNELS, HOP, SYMBOLS = 8, 16, 160
RATE = 22_050
PHONEMES = "_^$ !'(),-.:;?abdefhijklmnopstuvwzæðŋɐɑɔəɚɛɜɡɪɹɾʃʊʌʒʔˈˌːθᵻ"


def write_voice(folder: Path, *, flow=32, decoder=13, seed=0, frames=2.0, loudness=1.0) -> Path:
    """Write the network and its description.

    Args:
        folder: is made.
        flow: frames on either side that the flow looks at.
        decoder: the same of the decoder.
        seed: of the weights.
        frames: of each symbol.
        loudness: of the audio.
    """
    random = np.random.default_rng(seed)

    def draw(*shape, scale):
        return (scale * random.standard_normal(shape)).astype(np.float32)

    graph = model(
        constant("means", draw(CHANNELS, SYMBOLS, scale=1.0)),
        constant("spreads", draw(CHANNELS, SYMBOLS, scale=0.1)),
        constant("lengths", np.full((1, SYMBOLS), frames, np.float32)),
        constant("rows", np.array([1, CHANNELS, -1])),
        constant("row", np.array([1, 1, -1])),
        *(constant(name, np.array(index)) for index, name in enumerate(("zero", "one", "two"))),
        constant("axis", np.array([1])),
        constant("flow weights", draw(CHANNELS, CHANNELS, 2 * flow + 1, scale=0.1)),
        constant("flow pads", np.array([0, 0, flow, 0, 0, flow])),
        constant("decoder weights", draw(HOP, CHANNELS, 2 * decoder + 1, scale=0.02 * loudness)),
        constant("decoder pads", np.array([0, 0, decoder, 0, 0, decoder])),
        node("Gather", "means input", "mean", axis=1),
        node("Reshape", "mean rows", "/enc_p/Split_output_0"),
        node("Gather", "spreads input", "spread", axis=1),
        node("Reshape", "spread rows", "/enc_p/Split_output_1"),
        node("Gather", "lengths input", "length", axis=1),
        node("Reshape", "length row", "even"),
        node("Gather", "scales one", "length scale"),
        node("Mul", "even|length scale", "scaled"),
        node("RandomNormalLike", "scaled", "/dp/RandomNormalLike_output_0"),
        node("ReduceSum", "/dp/RandomNormalLike_output_0 axis", "rhythm"),
        node("Gather", "scales two", "rhythm scale"),
        node("Mul", "rhythm|rhythm scale", "uneven"),
        node("Add", "scaled uneven", "drawn"),
        node("Ceil", "drawn", "/Ceil_output_0"),
        node("RandomNormalLike", "/enc_p/Split_output_0", "/RandomNormalLike_output_0"),
        node("Add", "/enc_p/Split_output_0 /RandomNormalLike_output_0", "/Add_output_0"),
        node("Identity", "/Ceil_output_0", "/Cast_2_output_0"),
        node("Mul", "/Add_output_0 /Cast_2_output_0", "masked"),
        node("Pad", "masked|flow pads", "flow in"),
        node("Conv", "flow in|flow weights", "flow out"),
        node("Mul", "flow out|/Cast_2_output_0", "/Mul_7_output_0"),
        node("Pad", "/Mul_7_output_0|decoder pads", "decoder in"),
        node("Conv", "decoder in|decoder weights", "waves"),
        node("Transpose", "waves", "by frame"),
        node("Reshape", "by frame|row", "wave"),
        node("Tanh", "wave", "/dec/Tanh_output_0"),
        node("Identity", "/dec/Tanh_output_0", "output"),
        value(11, "input", INT64, "batch", "symbols"),
        value(11, "input_lengths", INT64, "batch"),
        value(11, "scales", FLOAT, 3),
        value(12, "output", FLOAT, 1, 1, "samples"),
    )
    folder.mkdir(parents=True)
    (folder / "en_US-joe-medium.onnx").write_bytes(graph)
    settings = {
        "audio": {"sample_rate": RATE, "quality": "medium"},
        "inference": {"noise_scale": 0.5, "length_scale": 1, "noise_w": 0.3},
        "num_speakers": 1,
        "phoneme_id_map": {symbol: [index] for index, symbol in enumerate(PHONEMES)},
    }
    (folder / "en_US-joe-medium.onnx.json").write_text(json.dumps(settings, ensure_ascii=False))
    return folder
