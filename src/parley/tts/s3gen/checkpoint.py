"""Reads upstream's S3Gen checkpoints (``s3gen.safetensors``, ``s3gen_meanflow.safetensors``).

All sizes come from the tensors' shapes, so that a small checkpoint for tests loads as the real
one does. The file also holds what is needed to make a voice (tokenizer, speaker encoder); that is
left where it is.
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
from parley.tts.s3gen.conformer import TokenEncoder
from parley.tts.s3gen.estimator import HEAD_SIZE, Estimator
from parley.tts.s3gen.flow import Flow
from parley.tts.s3gen.hift import Vocoder

FILES = ("s3gen_meanflow.safetensors", "s3gen.safetensors")
"""Names that a checkpoint may have; the first that is there counts."""
_PARTS = ("flow.", "mel2wav.")
_NORMALISED = ".parametrizations.weight.original"

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Networks:
    """The two networks, ready to be used."""

    flow: Flow
    vocoder: Vocoder


def find_checkpoint(folder: Path) -> Path:
    """The checkpoint in a folder.

    Raises:
        WeightsNotFoundError: there is none.
    """
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    raise WeightsNotFoundError(f"{folder} holds none of {', '.join(FILES)}")


def load(path: Path) -> Networks:
    """Read a checkpoint into memory.

    Raises:
        ModelLoadingError: it is not a checkpoint of S3Gen.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(_PARTS)]  # noqa: SIM118 - not a mapping
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise ModelLoadingError(f"{path} cannot be read: {error}") from error
    try:
        return build(tensors)
    except (KeyError, RuntimeError, ValueError) as error:
        raise ModelLoadingError(f"{path} does not hold S3Gen: {error}") from error


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
    flow.load_state_dict(_part(plain, "flow."))
    vocoder.load_state_dict(_part(plain, "mel2wav."))
    for network in (flow, vocoder):
        network.eval().requires_grad_(False)
    return Networks(flow, vocoder)


def _flow(tensors: Tensors) -> Flow:
    attention = tensors["flow.encoder.encoders.0.self_attn.pos_bias_u"]
    encoder = TokenEncoder(
        width=attention.numel(),
        heads=len(attention),
        hidden=len(tensors["flow.encoder.encoders.0.feed_forward.w_1.bias"]),
        layers=_count(tensors, r"flow\.encoder\.encoders\.(\d+)\."),
        up_layers=_count(tensors, r"flow\.encoder\.up_encoders\.(\d+)\."),
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
        blocks=_count(tensors, r"flow\.decoder\.estimator\.down_blocks\.0\.1\.(\d+)\."),
        mid_levels=_count(tensors, r"flow\.decoder\.estimator\.mid_blocks\.(\d+)\."),
        meanflow=f"{prefix}time_embed_mixer.weight" in tensors,
    )
    return Flow(len(tensors["flow.input_embedding.weight"]), encoder, estimator)


def _multiply_out(tensors: Tensors) -> dict[str, Tensor]:
    """Replace length and direction of normalised weights by the weights."""
    plain = {name: tensor.float() for name, tensor in tensors.items() if _NORMALISED not in name}
    for name, length in tensors.items():
        if name.endswith(f"{_NORMALISED}0"):
            base = name.removesuffix(f"{_NORMALISED}0")
            direction = tensors[f"{base}{_NORMALISED}1"].float()
            norm = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
            plain[f"{base}.weight"] = direction * (length.float() / norm)
    return plain


def _part(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _count(tensors: Tensors, pattern: str) -> int:
    numbers = [int(match[1]) for name in tensors if (match := re.match(pattern, name))]
    return 1 + max(numbers, default=-1)
