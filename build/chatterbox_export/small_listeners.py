"""Shrunken random versions of the networks that make voices, with the published key names, and random voices.

The networks recognise no speaker, but different recordings give different voices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from parley_torch.tts.voices.enrollment.networks import SpeakerEncoder, SpeechTokenizer
from parley_torch.tts.voices.objects import FolderObjects
from parley_torch.tts.voices.store import VoiceStore
from parley_torch.tts.voices.voice import MAX_VOICE_BYTES, Voice

_DIGITS_SPREAD = 2.0  # all three values of each digit of a token come up


def small_listeners(
    *,
    width: int = 64,
    layers: int = 2,
    growth: int = 8,
    dense_layers: Sequence[int] = (2, 2, 2),
    seed: int = 0,
) -> dict[str, Tensor]:
    """The tokenizer's and the speaker encoder's tensors, by their names in S3Gen's checkpoint.

    Args:
        width: of the tokenizer; a multiple of 64.
        layers: of the tokenizer.
        growth: channels that each dense layer of the speaker encoder adds.
        dense_layers: of its three blocks.
        seed: of the weights.
    """
    generator = torch.Generator().manual_seed(seed)
    tokenizer = SpeechTokenizer(width=width, layers=layers)
    speaker = SpeakerEncoder(first=4 * growth, growth=growth, inner=4 * growth, layers=dense_layers)
    _fill(tokenizer, generator)
    _fill(speaker, generator)
    with torch.no_grad():
        tokenizer.quantizer._codebook.project_down.weight.mul_(_DIGITS_SPREAD)  # noqa: SLF001 - its published name
    return {
        f"{prefix}.{name}": tensor.clone().contiguous()
        for prefix, network in (("tokenizer", tokenizer), ("speaker_encoder", speaker))
        for name, tensor in network.state_dict().items()
    }


async def write_random_voices(folder: Path, names: Sequence[str]) -> None:
    """Store a voice of each name, with a prompt of two seconds, below the folder of a checkpoint."""
    store = VoiceStore(FolderObjects(folder / "voices", MAX_VOICE_BYTES))
    for seed, name in enumerate(names):
        noise = np.random.default_rng(seed)
        await store.put(
            Voice(
                name,
                noise.standard_normal(256, np.float32),
                noise.integers(0, 6561, 60, np.int32),
                noise.standard_normal(192, np.float32),
                noise.integers(0, 6561, 50, np.int32),
                noise.standard_normal((100, 80), np.float32),
            )
        )


def _fill(network: nn.Module, generator: torch.Generator) -> None:
    """Random weights that preserve the magnitude of their inputs."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 1.4 / math.sqrt(parameter[0].numel()), generator=generator)
            else:
                parameter.normal_(0.0, 0.1, generator=generator)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(0.0, 0.1, generator=generator)
                module.running_var.uniform_(0.7, 1.3, generator=generator)
            if (
                isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm)
                and module.weight is not None
            ):
                module.weight.uniform_(0.7, 1.3, generator=generator)
