"""Reads the networks that make voices from upstream's checkpoints.

``ve.safetensors`` is the voice encoder; ``s3gen.safetensors`` (or ``s3gen_meanflow.safetensors``)
holds the tokenizer and the speaker encoder beside what makes audio. All sizes come from the
tensors' shapes, so that a small checkpoint for tests loads as the real one does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.tts.s3gen.checkpoint import find_checkpoint
from parley.tts.voices.enrollment.speaker_encoder import DILATIONS, SpeakerEncoder
from parley.tts.voices.enrollment.spectra import RATE, encoder_mel
from parley.tts.voices.enrollment.speech_tokenizer import HEAD_SIZE, SpeechTokenizer

_FRAMES = 160
"""Of one stretch."""
_STEP = round(RATE / 1.3 / _FRAMES)
"""Frames from one stretch to the next: 1.3 stretches a second."""
_MIN_COVERAGE = 0.8
"""Of the last stretch by audio; below it, the stretch is left out."""
MIN_SAMPLES = 3_200


class VoiceEncoder(nn.Module):
    """See the module.

    Args:
        bands: of the spectrogram.
        width: of the LSTM.
        size: of the embedding.
        layers: of the LSTM.
    """

    def __init__(self, bands: int = 40, width: int = 256, size: int = 256, layers: int = 3) -> None:
        super().__init__()
        self.bands = bands
        self.lstm = nn.LSTM(bands, width, num_layers=layers, batch_first=True)
        self.proj = nn.Linear(width, size)

    def forward(self, audio: Tensor) -> Tensor:
        """The embedding of a recording.

        Args:
            audio: f32 ``[n]``, 16 kHz, trimmed; n at least :data:`MIN_SAMPLES`.

        Returns:
            f32 ``[256]``, of length 1.
        """
        mel = encoder_mel(audio, self.bands)
        count = _stretches(len(mel))
        missing = _FRAMES + (count - 1) * _STEP - len(mel)
        if missing > 0:
            mel = torch.cat([mel, mel.new_zeros(missing, self.bands)])
        stretches = mel.unfold(0, _FRAMES, _STEP)[:count].transpose(1, 2)
        _, (hidden, _) = self.lstm(stretches)
        directions = nn.functional.normalize(self.proj(hidden[-1]).relu(), dim=1)
        return nn.functional.normalize(directions.mean(dim=0), dim=0)


def _stretches(frames: int) -> int:
    """How many stretches a recording has."""
    count, rest = divmod(max(frames - _FRAMES + _STEP, 0), _STEP)
    if count == 0 or (rest + _FRAMES - _STEP) / _FRAMES >= _MIN_COVERAGE:
        count += 1
    return count


VOICE_ENCODER_FILE = "ve.safetensors"
_TOKENIZER = "tokenizer."
_SPEAKER = "speaker_encoder."
# Constants that upstream keeps beside the weights; here they are computed.
_COMPUTED = ("tokenizer._mel_filters", "tokenizer.window")

Tensors = Mapping[str, Tensor]
NetworkT = TypeVar("NetworkT", bound=nn.Module)


@dataclass(frozen=True)
class EnrollmentNetworks:
    """What hears a speaker."""

    voice_encoder: VoiceEncoder
    tokenizer: SpeechTokenizer
    speaker_encoder: SpeakerEncoder
    digest: str
    """The first 16 hexadecimal digits of the SHA-256 of the weights."""


def load(folder: Path) -> EnrollmentNetworks:
    """Read the networks from a checkpoint's folder.

    Raises:
        WeightsNotFoundError: a file is missing.
        ModelLoadingError: a file is not what its name says.
    """
    voice_file, s3gen_file = folder / VOICE_ENCODER_FILE, find_checkpoint(folder)
    if not voice_file.is_file():
        raise WeightsNotFoundError(f"{folder} holds no {VOICE_ENCODER_FILE}")
    voice = _read(voice_file, "")
    rest = _read(s3gen_file, (_TOKENIZER, _SPEAKER))
    return EnrollmentNetworks(
        _built(voice_file, build_voice_encoder, voice),
        _built(s3gen_file, build_tokenizer, rest),
        _built(s3gen_file, build_speaker_encoder, rest),
        _digest(voice, rest),
    )


def build_voice_encoder(tensors: Tensors) -> VoiceEncoder:
    """The voice encoder of ``ve.safetensors``.

    Raises:
        KeyError: a tensor is missing.
        RuntimeError: tensors do not fit, or there are too many.
    """
    network = VoiceEncoder(
        bands=tensors["lstm.weight_ih_l0"].shape[1],
        width=tensors["lstm.weight_hh_l0"].shape[1],
        size=len(tensors["proj.bias"]),
        layers=_count(tensors, r"lstm\.weight_ih_l(\d+)$"),
    )
    # The similarity's two numbers served training alone.
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
        layers=_count(tensors, r"tokenizer\.encoder\.blocks\.(\d+)\."),
        kernel=tensors[f"{_TOKENIZER}encoder.blocks.0.attn.fsmn_block.weight"].shape[2],
    )
    kept = {name: tensor for name, tensor in tensors.items() if name not in _COMPUTED}
    return _fill(network, _part(kept, _TOKENIZER))


def build_speaker_encoder(tensors: Tensors) -> SpeakerEncoder:
    """The speaker encoder of S3Gen's checkpoint.

    Raises:
        KeyError: a tensor is missing.
        RuntimeError: tensors do not fit, or there are too many.
    """
    layer = f"{_SPEAKER}xvector.block1.tdnnd1."
    network = SpeakerEncoder(
        front=len(tensors[f"{_SPEAKER}head.bn1.bias"]),
        first=len(tensors[f"{_SPEAKER}xvector.tdnn.linear.weight"]),
        growth=len(tensors[f"{layer}cam_layer.linear_local.weight"]),
        inner=len(tensors[f"{layer}linear1.weight"]),
        layers=[
            _count(tensors, rf"speaker_encoder\.xvector\.block{number}\.tdnnd(\d+)\.") - 1
            for number in range(1, len(DILATIONS) + 1)
        ],
        size=len(tensors[f"{_SPEAKER}xvector.dense.linear.weight"]),
    )
    return _fill(network, _part(tensors, _SPEAKER))


def _read(path: Path, prefixes: str | tuple[str, ...]) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {
                name: file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118 - not a mapping
                if name.startswith(prefixes)
            }
    except (OSError, SafetensorError) as error:
        raise ModelLoadingError(f"{path} cannot be read: {error}") from error


def _built(path: Path, build: Callable[[Tensors], NetworkT], tensors: Tensors) -> NetworkT:
    try:
        return build(tensors)
    except (KeyError, RuntimeError, ValueError) as error:
        raise ModelLoadingError(f"{path} does not hold what makes voices: {error!r}") from error


def _fill(network: NetworkT, tensors: Tensors) -> NetworkT:
    network.load_state_dict(tensors)  # copies into the network's own type
    network.eval().requires_grad_(False)
    return network


def _digest(*parts: Tensors) -> str:
    digest = sha256()
    for tensors in parts:
        for name, tensor in sorted(tensors.items()):
            digest.update(name.encode())
            digest.update(tensor.float().numpy().tobytes())
    return digest.hexdigest()[:16]


def _part(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _count(tensors: Tensors, pattern: str) -> int:
    numbers = [int(match[1]) for name in tensors if (match := re.match(pattern, name))]
    return 1 + max(numbers, default=-1)
