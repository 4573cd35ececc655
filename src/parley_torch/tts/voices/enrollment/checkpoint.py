"""Reads the networks that make voices from upstream's checkpoints.

``ve.safetensors`` is the voice encoder; ``s3gen.safetensors`` (or ``s3gen_meanflow.safetensors``)
holds the tokenizer and the speaker encoder beside the networks that make audio. All sizes come from the
tensors' shapes, so that a small checkpoint for tests loads as the real one does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from torch import nn

from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley_torch.tts.chatterbox.files import VOICE_ENCODER
from parley_torch.tts.s3gen.checkpoint import Tensors, count_layers, find_checkpoint, read_tensors, select
from parley_torch.tts.voices.enrollment.networks import (
    DILATIONS,
    HEAD_SIZE,
    SpeakerEncoder,
    SpeechTokenizer,
    VoiceEncoder,
)

_TOKENIZER = "tokenizer."
_SPEAKER = "speaker_encoder."
# Constants that upstream stores beside the weights; here they are computed.
_COMPUTED = ("tokenizer._mel_filters", "tokenizer.window")

NetworkT = TypeVar("NetworkT", bound=nn.Module)


@dataclass(frozen=True)
class EnrollmentNetworks:
    """The networks that analyse a speaker."""

    voice_encoder: VoiceEncoder
    tokenizer: SpeechTokenizer
    speaker_encoder: SpeakerEncoder
    digest: str
    """The first 16 hexadecimal digits of the SHA-256 of the weights."""


def load(folder: Path) -> EnrollmentNetworks:
    """Read the networks from a checkpoint's folder.

    Raises:
        WeightsNotFoundError: a file is missing.
        ModelLoadingError: a file holds something else.
    """
    voice_file, s3gen_file = folder / VOICE_ENCODER, find_checkpoint(folder)
    if not voice_file.is_file():
        raise WeightsNotFoundError(f"{folder} holds no {VOICE_ENCODER}")
    voice = read_tensors(voice_file, ("",))
    rest = read_tensors(s3gen_file, (_TOKENIZER, _SPEAKER))
    return EnrollmentNetworks(
        _built(voice_file, build_voice_encoder, voice),
        _built(s3gen_file, build_tokenizer, rest),
        _built(s3gen_file, build_speaker_encoder, rest),
        _digest(voice, rest),
    )


def build_voice_encoder(tensors: Tensors) -> VoiceEncoder:
    """The voice encoder of ``ve.safetensors``; raises the errors of :func:`build_tokenizer`."""
    network = VoiceEncoder(
        bands=tensors["lstm.weight_ih_l0"].shape[1],
        width=tensors["lstm.weight_hh_l0"].shape[1],
        size=len(tensors["proj.bias"]),
        layers=count_layers(tensors, r"lstm\.weight_ih_l(\d+)$"),
    )
    # The two numbers of the similarity are for training only.
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith("similarity_")}
    return _fill(network, own)


def build_tokenizer(tensors: Tensors) -> SpeechTokenizer:
    """The tokenizer of S3Gen's checkpoint.

    Raises:
        KeyError: a tensor is missing.
        ValueError: the sizes are not those of a tokenizer.
        RuntimeError: tensors do not fit, or there are too many.
    """
    width, bands, _ = tensors[f"{_TOKENIZER}encoder.conv1.weight"].shape
    if width % HEAD_SIZE:
        raise ValueError(f"the tokenizer's width {width} is not a multiple of {HEAD_SIZE}")
    network = SpeechTokenizer(
        bands,
        width,
        layers=count_layers(tensors, r"tokenizer\.encoder\.blocks\.(\d+)\."),
        kernel=tensors[f"{_TOKENIZER}encoder.blocks.0.attn.fsmn_block.weight"].shape[2],
    )
    weights = {name: tensor for name, tensor in tensors.items() if name not in _COMPUTED}
    return _fill(network, select(weights, _TOKENIZER))


def build_speaker_encoder(tensors: Tensors) -> SpeakerEncoder:
    """The speaker encoder of S3Gen's checkpoint; raises the errors of :func:`build_tokenizer`."""
    layer = f"{_SPEAKER}xvector.block1.tdnnd1."
    network = SpeakerEncoder(
        front=len(tensors[f"{_SPEAKER}head.bn1.bias"]),
        first=len(tensors[f"{_SPEAKER}xvector.tdnn.linear.weight"]),
        growth=len(tensors[f"{layer}cam_layer.linear_local.weight"]),
        inner=len(tensors[f"{layer}linear1.weight"]),
        layers=[
            count_layers(tensors, rf"speaker_encoder\.xvector\.block{number}\.tdnnd(\d+)\.") - 1
            for number in range(1, len(DILATIONS) + 1)
        ],
        size=len(tensors[f"{_SPEAKER}xvector.dense.linear.weight"]),
    )
    return _fill(network, select(tensors, _SPEAKER))


def _built(path: Path, build: Callable[[Tensors], NetworkT], tensors: Tensors) -> NetworkT:
    try:
        return build(tensors)
    except (KeyError, RuntimeError, ValueError) as error:
        raise ModelLoadingError(f"{path} does not hold the enrollment networks: {error!r}") from error


def _fill(network: NetworkT, tensors: Tensors) -> NetworkT:
    network.load_state_dict(tensors)  # converts to the network's own type
    network.eval().requires_grad_(False)
    return network


def _digest(*parts: Tensors) -> str:
    digest = sha256()
    for tensors in parts:
        for name, tensor in sorted(tensors.items()):
            digest.update(name.encode())
            digest.update(tensor.float().numpy().tobytes())
    return digest.hexdigest()[:16]
