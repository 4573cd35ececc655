"""Make streaming encoders of the real size, with random weights, to measure how long a step takes.

    .venv-export/bin/python build/make_real_size_streaming.py out/real-size --look-ahead 0

They have the layers, widths and tensors of nvidia/nemotron-speech-streaming-en-0.6b, quantised for CPUs
(matrix products in eight bits). ``make bench-asr ARGS=--real-size`` measures those that it finds in
out/real-size. What they recognise is noise. Takes 10 GB of memory and a few minutes.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnx

import parley  # noqa: F401 - first: it turns ONNX Runtime's telemetry off

# isort: split
import torch
from nemo.collections.asr.models import EncDecRNNTBPEModel
from nemo.utils import logging as nemo_logging
from omegaconf import OmegaConf
from onnx import TensorProto, helper, numpy_helper

from nemo_export import layout
from nemo_export.archive import ROOT, Entry
from tiny.asr_model import make_tokenizer
from tiny.streaming_model import LOOK_AHEADS, streaming_configuration

SIZES = {
    "preprocessor": {"features": 128},
    "encoder": {
        "feat_in": 128,
        "n_layers": 24,
        "d_model": 1024,
        "n_heads": 8,
        "subsampling_conv_channels": 256,
        "conv_kernel_size": 9,
    },
    "model_defaults": {"enc_hidden": 1024},
}


def make(look_ahead: int, folder: Path) -> None:
    """Write the encoder for ``look_ahead`` into ``folder``, with its weights and sizes."""
    entry = Entry("real-size", "rnnt-streaming", "", "", (look_ahead,), look_ahead, {})
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        tokens, fp32 = Path(temporary) / "tokens", Path(temporary) / "fp32"
        tokens.mkdir()
        fp32.mkdir()
        clips = json.loads((ROOT / "tests/data/asr_eval/manifest.json").read_text())
        make_tokenizer([clip["text"] for clip in clips if clip["text"]] * 3, tokens)
        torch.manual_seed(0)
        configuration = OmegaConf.merge(streaming_configuration(tokens), SIZES)
        model = EncDecRNNTBPEModel(cfg=configuration).eval()
        parameters = sum(weight.numel() for weight in model.encoder.parameters())
        print(f"encoder with {parameters / 1e6:.0f} million parameters")
        layout.export(model, entry, fp32)
        del model
        made = Path(temporary) / "int8"
        made.mkdir()
        layout.convert(entry, fp32, made, "int8")
        for path in made.iterdir():
            shutil.move(path, folder / path.name)


def write_product(path: Path) -> None:
    """Write a graph of one product of the widest layer's size, which shows what the processor can do."""
    weights = np.random.default_rng(0).integers(-127, 127, (1024, 4096)).astype(np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "weights"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [None, 1024])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [None, 4096])],
        [numpy_helper.from_array(weights, "weights")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def main() -> None:
    """Parse the command line and make the encoders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("into", type=Path, metavar="DIR", help="gets a folder r0, r1 and so on")
    parser.add_argument(
        "--look-ahead",
        type=int,
        action="append",
        choices=sorted(LOOK_AHEADS),
        help="encoder frames; repeatable (default: 0)",
    )
    args = parser.parse_args()
    nemo_logging.setLevel(logging.ERROR)
    logging.getLogger().setLevel(logging.ERROR)
    args.into.mkdir(parents=True, exist_ok=True)
    write_product(args.into / "product.onnx")
    for look_ahead in args.look_ahead or [0]:
        make(look_ahead, args.into / f"r{look_ahead}")


if __name__ == "__main__":
    main()
