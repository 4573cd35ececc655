"""The weights of an ONNX export for recognition on torch: one file, with the precision of the device.

``model.safetensors``, ``vocab.txt`` and ``config.json`` are all that the models need whose parameter
``engine`` is ``torch``. They can read the ONNX files as well; this is half as large. Prediction and joint
network stay in single precision. The network is compared with the export on noise.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from comparison import check, relative_difference
from parley.asr import checkpoint
from parley.asr.checkpoint import CONFIG_FILE, DESCRIPTION, FILES, WEIGHTS_FILE
from parley.asr.features import SILENCE
from parley.asr.parakeet.networks import OnnxEncoder
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.encoder import CacheAwareEncoder
from parley.runtime.onnx import open_session
from parley_torch.asr.fastconformer import HISTORY, EncoderPool, EncoderSizes, FastConformer
from parley_torch.asr.prompt import LanguagePrompt
from parley_torch.asr.weights import ENCODER, read_weights
from parley_torch.runtime.precision import PRECISIONS

LIMITS = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.01}
"""Relative difference from the export, by precision."""
_FRAMES = 400
_CPU = torch.device("cpu")
_Compared: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float32], dict[str, torch.Tensor]]


def export(folder: Path, into: Path, precision: str) -> None:
    """Write the files.

    Args:
        folder: the export, in single precision.
        into: where to; may be ``folder``.
        precision: of the encoder's layers, a name of ``PRECISIONS``.

    Raises:
        ParleyError: the export cannot be read.
        ExportError: they would differ too much; nothing is written.
    """
    config, dtype = json.loads((folder / CONFIG_FILE).read_text()), PRECISIONS[precision]
    found, expected, weights = (_streaming if "streaming" in config else _offline)(folder, dtype)
    differences = {"encoder": relative_difference(found, expected)}
    check(into.name, "the ONNX export", differences, {"encoder": LIMITS[precision]})
    into.mkdir(parents=True, exist_ok=True)
    stored = {
        name: tensor.to(dtype if name.startswith(f"{ENCODER}layers.") else torch.float32).contiguous()
        for name, tensor in weights.items()
    }
    save_file(stored, into / WEIGHTS_FILE)
    for name in DESCRIPTION:
        if into != folder:
            shutil.copyfile(folder / name, into / name)


def _offline(folder: Path, dtype: torch.dtype) -> _Compared:
    """What the network makes of noise, what the export makes of it, and the weights."""
    export = checkpoint.load(folder, FILES)
    weights = read_weights(folder, export.encoder, export.decoder)
    network = _network(weights, export.config.features_size, dtype, causal=False)
    features = np.random.default_rng(0).standard_normal((1, export.config.features_size, _FRAMES))
    lengths = np.array([_FRAMES])
    expected, _ = OnnxEncoder(open_session(export.encoder)).encode(features.astype(np.float32), lengths)
    with torch.inference_mode():
        found, _ = network(
            torch.from_numpy(features).float().transpose(1, 2),
            torch.from_numpy(lengths),
            network.positions(0, network.sizes.subsampled(_FRAMES)),
        )
    return found.float().numpy().transpose(0, 2, 1), expected, weights


def _streaming(folder: Path, dtype: torch.dtype) -> _Compared:
    """The same, chunk by chunk."""
    export = streaming_checkpoint.load(folder)
    look_ahead = export.streaming.look_aheads[0]
    common, path = export.checkpoint, export.encoder(look_ahead)
    weights = read_weights(folder, path, common.decoder)
    bands = common.config.features_size
    network = _network(weights, bands, dtype, causal=True)
    prompts = common.config.prompts
    prompt = LanguagePrompt.of(weights, prompts, network.sizes.width, _CPU)
    language = np.array([max(prompts.values(), default=0)], np.int64)
    channel = export.streaming.cache_last_channel
    onnx = CacheAwareEncoder(
        open_session(path), lookahead=look_ahead, channel=channel, time=export.streaming.cache_last_time
    )
    pool = EncoderPool.allocate(
        network.sizes, rows=1, left=channel[1], silence=float(SILENCE), dtype=dtype, device=_CPU
    )
    row, positions = torch.zeros(1, dtype=torch.int64), network.positions(channel[1], look_ahead + 1)
    caches = {name: values[None] for name, values in onnx.initial.items()}
    history = np.full((1, bands, HISTORY), SILENCE, np.float32)
    rng = np.random.default_rng(0)
    found, expected = [], []
    for _ in range(_FRAMES // onnx.chunk):
        chunk = rng.normal(-9.0, 4.0, (1, bands, onnx.chunk)).astype(np.float32)
        seen = np.concatenate([history, chunk], axis=2)
        history = seen[:, :, -HISTORY:]
        encoded, _, caches = onnx.encode(seen, caches, language)
        expected.append(encoded)
        with torch.inference_mode():
            own = network.step(torch.from_numpy(chunk.transpose(0, 2, 1)), pool, row, row, positions).float()
            if prompt is not None:
                own = prompt(own, torch.from_numpy(language))
        found.append(own.numpy().transpose(0, 2, 1))
    return np.concatenate(found, axis=2), np.concatenate(expected, axis=2), weights


def _network(
    weights: dict[str, torch.Tensor], bands: int, dtype: torch.dtype, *, causal: bool
) -> FastConformer:
    return FastConformer.of(weights, EncoderSizes.of(weights, bands=bands, causal=causal), dtype, _CPU)
