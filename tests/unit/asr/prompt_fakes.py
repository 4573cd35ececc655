"""The shipped streaming model with a language prompt of random weights."""

from __future__ import annotations

import json
import shutil

import numpy as np

from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.encoder import CHANNEL, LENGTH, TIME
from parley.asr.streaming.prompt_graph import PROMPT, prompt_nodes, prompt_tensors
from parley.launcher.options import ROOT
from parley.runtime.onnx_file import OnnxModel, PartInput, make_node

EXPORT = streaming_checkpoint.load(ROOT / "models" / streaming_checkpoint.DEFAULT)
PROMPTS = {"en-US": 0, "en": 0, "en-GB": 1, "es-ES": 2, "es-US": 3, "es": 3, "auto": 6}
COUNT = 8
LANGUAGE_SCALE = 1.8
"""So large that some words change and some do not."""


def random_kernel(width=144, count=COUNT, seed=0):
    """NeMo's parameters. Frames pass, so that words are recognised, and each language moves them."""
    rng = np.random.default_rng(seed)

    def draw(*shape, scale):
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    both = np.concatenate([np.eye(width), -np.eye(width)]).astype(np.float32)
    return {
        "prompt_kernel.0.weight": np.concatenate(
            [both + draw(2 * width, width, scale=0.01), draw(2 * width, count, scale=LANGUAGE_SCALE)], axis=1
        ),
        "prompt_kernel.0.bias": draw(2 * width, scale=0.05),
        "prompt_kernel.2.weight": both.T + draw(width, 2 * width, scale=0.01),
        "prompt_kernel.2.bias": draw(width, scale=0.05),
    }


def with_prompt(file, kernel):
    """An encoder's file with the prompt behind it, as ``build/nemo_export/prompts.py`` makes it."""
    model = OnnxModel(file)
    nodes = [node.writing({"outputs": "own"}).reading({"outputs": "own"}) for node in model.nodes]
    model.nodes = [*nodes, *(make_node(*node) for node in prompt_nodes("own", "outputs"))]
    for name, values in prompt_tensors(kernel).items():
        model.add_constant(name, values)
    outputs = ["outputs", "encoded_lengths", *(f"{name}_next" for name in (CHANNEL, TIME))]
    inputs = ["audio_signal", "length", CHANNEL, TIME, LENGTH, PartInput(PROMPT, 1, "i64")]
    return model.part(inputs, [*outputs, "cache_last_channel_next_len"])


def make_prompted_export(folder, kernel=None, prompts=PROMPTS):
    """Write the export; its description."""
    source = EXPORT.checkpoint.folder
    for name in ("vocab.txt", "decoder_joint-model.onnx", "encoder.weights"):
        shutil.copyfile(source / name, folder / name)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "prompts": prompts}))
    for look_ahead in EXPORT.streaming.look_aheads:
        file = EXPORT.encoder(look_ahead)
        made = with_prompt(file.read_bytes(), random_kernel() if kernel is None else kernel)
        (folder / file.name).write_bytes(made)
    return streaming_checkpoint.load(folder)
