"""Chatterbox at its published size, which hums: T3 is a small one made larger, S3Gen is random.

T3 ends an utterance after some eighty tokens, as the small one does.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from chatterbox_export.files import FILES
from chatterbox_export.small_listeners import small_listeners
from chatterbox_export.small_s3gen import VOCABULARY, humming_tensors
from chatterbox_export.small_t3 import write_small_t3
from parley_torch.tts.chatterbox.files import S3GEN
from parley_torch.tts.s3gen.flow import Flow
from parley_torch.tts.s3gen.networks import Estimator, TokenEncoder
from parley_torch.tts.s3gen.vocoder import Vocoder
from widened.decoder import T3, DecoderSize, widen_layers
from widened.padding import head_places, pad_inputs, place, repeat

_SMALL = DecoderSize(width=128, layers=2, heads=2, kv_heads=2, head=64, inner=512)
_PERCEIVER_HEADS = 4
_PERCEIVER = "cond_enc.perceiver.attn."
_NAME = FILES["original"].t3[1]


def widen_t3(folder: Path, size: DecoderSize = T3) -> Path:
    """Write T3, the voice encoder and the tokenizer of the original Chatterbox.

    Returns:
        ``folder``.
    """
    with tempfile.TemporaryDirectory() as made:
        source = write_small_t3(Path(made), width=_SMALL.width, layers=_SMALL.layers)
        weights = load_file(source / _NAME)
        folder.mkdir(parents=True, exist_ok=True)
        for path in source.iterdir():
            if path.name != _NAME:
                (folder / path.name).write_bytes(path.read_bytes())
    found = widen_layers(weights, "tfmr.layers.", _SMALL, size)
    found |= {
        name: _widen(name, tensor, size)
        for name, tensor in weights.items()
        if not name.startswith("tfmr.layers.")
    }
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / _NAME)
    return folder


def _widen(name: str, tensor: Tensor, size: DecoderSize) -> Tensor:
    """A tensor outside of the layers."""
    copies = size.width // _SMALL.width
    if name.startswith(_PERCEIVER) and ".norm." not in name:
        small, wide = _SMALL.width // _PERCEIVER_HEADS, size.width // _PERCEIVER_HEADS
        places = head_places(_PERCEIVER_HEADS, small, wide)
        if ".proj_out." in name:
            return repeat(place(tensor, places, size.width, 1) if tensor.ndim == 2 else tensor, copies)
        reads = pad_inputs(tensor, size.width)
        # Scores are divided by the root of the head's width.
        factor = math.sqrt(wide / small) if ".to_k." in name else 1.0
        return factor * place(reads, places, size.width, 0)
    if name.endswith("_head.weight"):
        return pad_inputs(tensor, size.width)
    if (name.startswith("cond_enc.") and tensor.ndim < 3) or name == "tfmr.norm.weight":
        return repeat(tensor, copies)
    return tensor.repeat(*[1] * (tensor.ndim - 1), copies)  # tables


def write_s3gen(folder: Path, *, seed: int = 0) -> Path:
    """Write a distilled S3Gen of the published size, and what makes voices, small.

    Returns:
        The file.
    """
    encoder = TokenEncoder(512, heads=8, hidden=2_048, layers=6, up_layers=4)
    estimator = Estimator(256, 512, blocks=4, mid_levels=12, meanflow=True)
    tensors = humming_tensors(Flow(VOCABULARY, encoder, estimator), Vocoder(512, 512), seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / S3GEN[0]
    save_file(tensors | small_listeners(seed=seed), path)
    return path
