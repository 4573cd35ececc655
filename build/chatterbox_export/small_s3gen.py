"""Shrunken random S3Gen checkpoints with the published key names.

Their voice is a hum, but one with a changing pitch, a spectrum and a level like speech, so that
clicks and differences between streamed and whole audio show as they would with real weights.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from chatterbox_export.small_listeners import small_listeners
from parley_torch.tts.chatterbox.files import S3GEN
from parley_torch.tts.s3gen.flow import Flow
from parley_torch.tts.s3gen.networks import HEAD_SIZE, Estimator, TokenEncoder
from parley_torch.tts.s3gen.vocoder import Vocoder

VOCABULARY = 6561
_NORMALISED = re.compile(
    r"(conv_pre|conv_post|ups\.\d+|(source_)?resblocks\.\d+\.convs[12]\.\d+|f0_predictor\.condnet\.\d+)\.weight"
)
_PITCH = 150.0  # hertz
# Of the spectrum's logarithm; each bin is 1.5 kHz.
_LOUDNESS, _TILT = 1.5, 2.0
# Chosen by ear and eye: the level of speech, and a spectrogram whose frames differ.
_DIRECTION = 3.0
_FLOW_SPREAD, _VOCODER_SPREAD, _POST_SPREAD, _PITCH_SPREAD = 1.6, 0.9, 0.15, 15.0


def small_s3gen(
    *, meanflow: bool = True, width: int = 64, layers: int = 2, channels: int = 64, seed: int = 0
) -> dict[str, Tensor]:
    """The tensors of a small checkpoint, by their published names.

    Args:
        meanflow: whether it is of the kind that takes two steps.
        width: of encoder and estimator; a multiple of 16.
        layers: of the encoder, and levels in the estimator's middle.
        channels: of the vocoder; a multiple of 8.
        seed: of the weights.
    """
    encoder = TokenEncoder(width, heads=4, hidden=2 * width, layers=layers, up_layers=layers)
    estimator = Estimator(width, 2 * HEAD_SIZE, blocks=1, mid_levels=layers, meanflow=meanflow)
    return humming_tensors(Flow(VOCABULARY, encoder, estimator), Vocoder(channels, channels), seed=seed)


def humming_tensors(flow: Flow, vocoder: Vocoder, *, seed: int = 0) -> dict[str, Tensor]:
    """Fill networks of any size, and return their tensors by their published names."""
    generator = torch.Generator().manual_seed(seed)
    _fill(flow, generator, _FLOW_SPREAD)
    _fill(vocoder, generator, _VOCODER_SPREAD)
    with torch.no_grad():
        flow.input_embedding.weight.normal_(generator=generator)
        flow.decoder.estimator.final_proj.weight.mul_(_DIRECTION)
        vocoder.conv_post.weight.mul_(_POST_SPREAD)
        bins = len(vocoder.conv_post.bias) // 2
        vocoder.conv_post.bias[:bins].copy_(_LOUDNESS - _TILT * torch.arange(bins))
        vocoder.f0_predictor.classifier.weight.mul_(_PITCH_SPREAD)
        vocoder.f0_predictor.classifier.bias.fill_(_PITCH)
        vocoder.m_source.l_linear.weight.fill_(0.7)
    tensors = {f"flow.{name}": tensor for name, tensor in flow.state_dict().items()}
    for name, tensor in vocoder.state_dict().items():
        if _NORMALISED.fullmatch(name):
            base = f"mel2wav.{name.removesuffix('weight')}parametrizations.weight.original"
            tensors[f"{base}0"] = torch.linalg.vector_norm(tensor, dim=(1, 2), keepdim=True)
            tensors[f"{base}1"] = tensor
        else:
            tensors[f"mel2wav.{name}"] = tensor
    return {name: tensor.clone().contiguous() for name, tensor in tensors.items()}


def write_small_s3gen(
    folder: Path,
    *,
    meanflow: bool = True,
    width: int = 64,
    layers: int = 2,
    channels: int = 64,
    seed: int = 0,
) -> Path:
    """Write a small checkpoint: see :func:`small_s3gen`, and what makes voices, as in the published file.

    Returns:
        The file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / S3GEN[0 if meanflow else 1]
    tensors = small_s3gen(meanflow=meanflow, width=width, layers=layers, channels=channels, seed=seed)
    save_file(tensors | small_listeners(seed=seed), path)
    return path


def _fill(network: nn.Module, generator: torch.Generator, spread: float) -> None:
    """Random weights that preserve the magnitude of their inputs."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1:
                fan_in = parameter[0].numel()
                if re.search(r"\bups\.", name):  # [in, out, kernel]: each output sees kernel/rate inputs
                    fan_in = 2 * parameter.shape[0]
                # Sharp attention: else every frame gets the same average of all.
                factor = 1.3 if re.search(r"(to|linear)_[qk]\b", name) else 1.0
                parameter.normal_(0.0, factor * spread / math.sqrt(fan_in), generator=generator)
            elif name.endswith("alpha") or ((".norm" in name or "_norm" in name) and name.endswith("weight")):
                parameter.uniform_(0.7, 1.3, generator=generator)
            else:
                parameter.normal_(0.0, 0.1, generator=generator)
