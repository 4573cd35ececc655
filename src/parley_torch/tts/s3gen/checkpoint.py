"""Reads upstream's S3Gen checkpoints (``s3gen.safetensors``, ``s3gen_meanflow.safetensors``).

All sizes come from the tensors' shapes, so that a small checkpoint for tests loads as the real
one does. The file also holds the networks that make a voice (tokenizer, speaker encoder);
they are not read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley_torch.tts.chatterbox.files import S3GEN
from parley_torch.tts.s3gen.flow import Flow
from parley_torch.tts.s3gen.networks import HEAD_SIZE, Estimator, TokenEncoder
from parley_torch.tts.s3gen.vocoder import Vocoder

_PARTS = ("flow.", "mel2wav.")
_NORMALISED = ".parametrizations.weight.original"

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Networks:
    """The two networks, ready for inference."""

    flow: Flow
    vocoder: Vocoder


def find_checkpoint(folder: Path) -> Path:
    """The checkpoint in a folder.

    Raises:
        WeightsNotFoundError: there is none.
    """
    for name in S3GEN:
        if (folder / name).is_file():
            return folder / name
    raise WeightsNotFoundError(f"{folder} holds none of {', '.join(S3GEN)}")


def load(path: Path) -> Networks:
    """Read a checkpoint into memory.

    Raises:
        ModelLoadingError: it is not a checkpoint of S3Gen.
    """
    tensors = read_tensors(path, _PARTS)
    try:
        return build(tensors)
    except (KeyError, RuntimeError, ValueError) as error:
        raise ModelLoadingError(f"{path} does not hold S3Gen: {error}") from error


def read_tensors(path: Path, prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """The tensors of a safetensors file whose names have one of the prefixes.

    Raises:
        ModelLoadingError: the file cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefixes)]  # noqa: SIM118 - not a mapping
            return {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise ModelLoadingError(f"{path} cannot be read: {error}") from error


def select(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names have the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def count_layers(tensors: Tensors, pattern: str) -> int:
    """One more than the largest number that the pattern's group matches in a name; 0 without a match."""
    numbers = [int(match[1]) for name in tensors if (match := re.match(pattern, name))]
    return 1 + max(numbers, default=-1)


def build(tensors: Tensors) -> Networks:
    """Networks of the sizes that the tensors have, holding them.

    Raises:
        KeyError: a tensor is missing.
        RuntimeError: tensors do not fit, or there are too many.
    """
    plain = _multiply_out(tensors)
    flow = _flow(plain)
    vocoder = Vocoder(
        channels=len(plain["mel2wav.conv_pre.bias"]),
        pitch_channels=len(plain["mel2wav.f0_predictor.condnet.0.bias"]),
    )
    flow.load_state_dict(select(plain, "flow."))
    vocoder.load_state_dict(select(plain, "mel2wav."))
    for network in (flow, vocoder):
        network.eval().requires_grad_(False)
    return Networks(flow, vocoder)


def _flow(tensors: Tensors) -> Flow:
    attention = tensors["flow.encoder.encoders.0.self_attn.pos_bias_u"]
    encoder = TokenEncoder(
        width=attention.numel(),
        heads=len(attention),
        hidden=len(tensors["flow.encoder.encoders.0.feed_forward.w_1.bias"]),
        layers=count_layers(tensors, r"flow\.encoder\.encoders\.(\d+)\."),
        up_layers=count_layers(tensors, r"flow\.encoder\.up_encoders\.(\d+)\."),
    )
    prefix = "flow.decoder.estimator."
    if f"{prefix}down_blocks.1.0.res_conv.bias" in tensors:
        raise ValueError("the estimator has more than one level")
    inner = len(tensors[f"{prefix}down_blocks.0.1.0.attn1.to_q.weight"])
    if inner % HEAD_SIZE:
        raise ValueError(f"an attention of {inner} channels has no whole number of {HEAD_SIZE}-channel heads")
    estimator = Estimator(
        width=len(tensors[f"{prefix}final_proj.weight"][0]),
        inner=inner,
        blocks=count_layers(tensors, r"flow\.decoder\.estimator\.down_blocks\.0\.1\.(\d+)\."),
        mid_levels=count_layers(tensors, r"flow\.decoder\.estimator\.mid_blocks\.(\d+)\."),
        meanflow=f"{prefix}time_embed_mixer.weight" in tensors,
    )
    return Flow(len(tensors["flow.input_embedding.weight"]), encoder, estimator)


def _multiply_out(tensors: Tensors) -> dict[str, Tensor]:
    """Compute normalised weights from their lengths and directions."""
    plain = {name: tensor.float() for name, tensor in tensors.items() if _NORMALISED not in name}
    for name, length in tensors.items():
        if name.endswith(f"{_NORMALISED}0"):
            base = name.removesuffix(f"{_NORMALISED}0")
            direction = tensors[f"{base}{_NORMALISED}1"].float()
            norm = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
            plain[f"{base}.weight"] = direction * (length.float() / norm)
    return plain
