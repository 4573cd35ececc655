"""The small end-of-turn network, and how it is written as ONNX."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

BANDS = 80
FRAMES = 300
"""Feature frames of 10 ms: the last three seconds."""
SAMPLES = FRAMES * 160
"""Audio samples at 16 kHz of the same time."""
_STEPS = FRAMES // 4
_PITCH_WINDOW = 1024
_PITCH_HOP = 640
_PITCH_BINS = 64
"""Of the Fourier transform of such a window, up to 1 kHz: the melody's harmonics lie in separate ones."""
_PITCH_RANGE = 6.0
"""Decades of power below the loudest that are looked at."""
_WIDTHS = (16, 24, 32)
_PITCH_WIDTHS = (8, 16)
_HIDDEN = 80
_CAUTION = math.log(0.7 / 0.3)


class Melody(nn.Module):
    """Narrow-band spectrum in which the fundamental frequency can be seen.

    Input: f32 ``[B, 48000]`` within ±1. Output: f32 ``[B, 64, 75]``, 0 (60 dB below the loudest) to 1.
    """

    kernels: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        time = torch.arange(_PITCH_WINDOW, dtype=torch.float64)
        window = torch.hann_window(_PITCH_WINDOW, dtype=torch.float64)
        angles = (
            2 * torch.pi * torch.outer(torch.arange(_PITCH_BINS, dtype=torch.float64), time) / _PITCH_WINDOW
        )
        kernels = torch.cat([angles.cos(), angles.sin()]) * window
        self.register_buffer("kernels", kernels.float().unsqueeze(1), persistent=False)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """Compute it with a convolution, which every ONNX runtime knows."""
        padded = nn.functional.pad(audio.unsqueeze(1), (_PITCH_WINDOW - _PITCH_HOP, 0))
        parts = nn.functional.conv1d(padded, self.kernels, stride=_PITCH_HOP)
        power = parts[:, :_PITCH_BINS].square() + parts[:, _PITCH_BINS:].square()
        decades = torch.log10(power + 1e-10)
        below = decades - decades.amax(dim=(1, 2), keepdim=True)
        return torch.clamp(below / _PITCH_RANGE + 1.0, min=0.0)


class TurnNet(nn.Module):
    """Convolutions over time and frequency, a GRU, and attention over its states.

    Input: f32 ``[B, 80, 300]``, the last frames of Whisper's log-mel features, and f32 ``[B, 48000]`` within
    ±1, the audio of the same time. Output: f32 ``[B, 1]``, the logit that the turn is over.
    """

    def __init__(self) -> None:
        super().__init__()
        one, two, three = _WIDTHS
        self.front = nn.Sequential(
            *_layer(1, one, (2, 2)), *_layer(one, two, (2, 2)), *_layer(two, three, (2, 1))
        )
        self.melody = Melody()
        low, high = _PITCH_WIDTHS
        self.pitch_front = nn.Sequential(*_layer(1, low, (2, 1)), *_layer(low, high, (2, 1)))
        width = three * BANDS // 8 + high * _PITCH_BINS // 4
        self.project = nn.Linear(width, _HIDDEN)
        self.recurrent = nn.GRU(_HIDDEN, _HIDDEN, batch_first=True)
        self.attend = nn.Linear(_HIDDEN, 1)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Sequential(nn.Linear(2 * _HIDDEN, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, features: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
        """Judge each row by itself."""
        # Whisper's features depend on how much of the eight seconds is speech; below the loudest they do not.
        level = features - features.amax(dim=(1, 2), keepdim=True)
        seen = self.front(level.unsqueeze(1) + 1.0).flatten(1, 2)
        melody = self.pitch_front(self.melody(audio).unsqueeze(1)).flatten(1, 2)
        rows = self.dropout(torch.cat([seen, melody], dim=1).transpose(1, 2))
        states, _ = self.recurrent(torch.relu(self.project(rows)))
        weights = torch.softmax(self.attend(states), dim=1)
        summary = torch.cat([states[:, -1], (weights * states).sum(1)], dim=1)
        logit: torch.Tensor = self.head(self.dropout(summary))
        return logit


def _layer(inputs: int, outputs: int, stride: tuple[int, int]) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]


class Probability(nn.Module):
    """The network as it is used.

    To cut a speaker off is worse than to wait: what the network takes for 70 % becomes 50 %.
    """

    def __init__(self, network: TurnNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_features: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
        """f32 ``[B, 1]``."""
        return torch.sigmoid(self.network(input_features, audio) - _CAUTION)


def export(network: TurnNet, path: Path) -> None:
    """Write the network; its inputs are ``input_features`` (as Smart Turn's) and ``audio``."""
    torch.onnx.export(
        Probability(network).eval(),
        (torch.zeros(1, BANDS, FRAMES), torch.zeros(1, SAMPLES)),
        str(path),
        input_names=["input_features", "audio"],
        output_names=["probability"],
        dynamic_axes={name: {0: "batch"} for name in ("input_features", "audio", "probability")},
        opset_version=17,
        dynamo=False,
    )
