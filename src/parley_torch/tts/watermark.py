"""An inaudible mark in synthetic speech, by which programs recognise it as such.

The mark is that of Resemble's Perth (PyPI ``resemble-perth``, MIT), whose detector finds it. Only the
network in the package is used: the package itself works on whole recordings, and imports
packages that a server must not have. Perth adds the network's output for a spectrogram's lowest 128
bands to their magnitudes. That is local: a sample depends on 214 ms before and after it, and on the
level of the loudest frame (silence is not marked), which here is the loudest so far. So a stream is
marked without seams, 214 ms late, however it is cut into pieces.

Perth resamples to 32 kHz, where its frames have 2048 samples and follow each other after 320. At 24 kHz
1536 and 240 are the same times, and the bands are the same.
"""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from parley.errors import ModelLoadingError

RATE = 24_000
_HOP, _SIZE = 240, 1536
_HALF = _SIZE // 2
_SCALE = 2048 / _SIZE  # of magnitudes, from here to 32 kHz
_BANDS = 128
_REACH = 15
"""Frames before and after one that the network looks at."""
_FLOOR = 1e-9
_FLOOR_DB, _RANGE_DB = -180.0, 195.0
_QUIET = 0.05
"""Level below which frames are not marked, relative to the loudest."""
_CHECKPOINT = "perth_net/pretrained/implicit/perth_net_250000.pth.tar"

F32 = NDArray[np.float32]


class PerthWatermark:
    """Perth's network; without state, so that all utterances can share it.

    ``layers`` are those of its encoder, ``[B, 128, T]`` to the same.
    """

    def __init__(self, layers: nn.Module) -> None:
        self._layers = layers.eval().requires_grad_(requires_grad=False)

    @classmethod
    def load(cls, path: Path) -> PerthWatermark:
        """Read the network from Perth's checkpoint.

        Raises:
            ModelLoadingError: it is missing or another network.
        """
        layers = encoder_layers()
        prefix = "encoder.layers."
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)["model"]
            own = {
                name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
            }
            layers.load_state_dict(own)
        except (
            *(OSError, EOFError, RuntimeError, LookupError),
            *(TypeError, AttributeError, pickle.UnpicklingError),
        ) as error:
            raise ModelLoadingError(f"{path} is not Perth's network: {error}") from error
        return cls(layers)

    def begin(self) -> PerthStream:
        """Begin an utterance."""
        return PerthStream(self._layers)


class PerthStream:
    """Marks one utterance; holds at most 0.5 s of audio between two calls."""

    def __init__(self, layers: nn.Module) -> None:
        self._layers = layers
        self._window = torch.hann_window(_SIZE)
        self._held = torch.zeros(0)
        self._frame = 0  # number of the first one computed from _held
        self._sent = 0  # samples
        self._loudest = torch.zeros(1)  # of the frames before

    @torch.inference_mode()
    def push(self, audio: F32, *, last: bool) -> F32:
        """Add samples, ``[n]`` within ±1 at 24 kHz, and return marked ones; after ``last``, all of them."""
        self._held = torch.cat([self._held, torch.from_numpy(np.ascontiguousarray(audio, np.float32))])
        begin = max(0, self._frame * _HOP - _HALF)  # of _held
        total = begin + len(self._held)
        frames = (-(-total // _HOP) + 1 if last else (total - _HALF) // _HOP + 1) - self._frame
        marked = frames if last else frames - _REACH
        until = total if last else (self._frame + marked) * _HOP - _HALF
        if until <= self._sent:
            return np.zeros(0, np.float32)
        mark, levels = self._mark(frames, marked)
        offset = self._frame * _HOP - _HALF  # of the mark's first sample
        new = self._held[self._sent - begin : until - begin] + mark[self._sent - offset : until - offset]
        self._sent = until
        self._drop_past(levels)
        return np.asarray(new.numpy(), np.float32)

    def _mark(self, frames: int, marked: int) -> tuple[Tensor, Tensor]:
        """The mark of the first ``marked`` held frames, and the level of every frame."""
        missing = _HALF - min(self._frame * _HOP, _HALF)  # before the utterance
        needed = (frames - 1) * _HOP + _SIZE
        padded = nn.functional.pad(self._held, (missing, max(0, needed - missing - len(self._held))))
        spectrum = torch.fft.rfft(padded.unfold(0, _SIZE, _HOP)[:frames] * self._window).T * _SCALE
        magnitudes = 20 * torch.log10(spectrum.abs().clip(_FLOOR))
        magnitudes = (magnitudes - _FLOOR_DB) / _RANGE_DB
        levels = magnitudes.sum(0)
        loudest = torch.maximum(levels.cummax(0).values, self._loudest)
        reference = torch.cat([loudest[_REACH:], loudest[-1:].expand(min(_REACH, frames))])[:frames]
        added = self._layers(magnitudes[None, :_BANDS])[0] * (levels > _QUIET * reference)
        before = spectrum[:_BANDS, :marked]
        louder = 10 ** ((added[:, :marked] * _RANGE_DB) / 20) - 1.0
        change = nn.functional.pad(before * louder / _SCALE, (0, 0, 0, _HALF + 1 - _BANDS))
        waves = torch.fft.irfft(change.T) * self._window
        envelope = (self._window**2).expand_as(waves)
        return _overlap(waves) / _overlap(envelope).clip(1e-6), levels

    def _drop_past(self, levels: Tensor) -> None:
        """Drop audio on which no further sample depends."""
        first = max(0, (self._sent - _HALF) // _HOP + 1 - _REACH)
        done = first - self._frame
        if done > 0:
            self._loudest = torch.maximum(self._loudest, levels[:done].max())
            begin, end = (max(0, frame * _HOP - _HALF) for frame in (self._frame, first))
            self._held = self._held[end - begin :].clone()
            self._frame = first


def _overlap(waves: Tensor) -> Tensor:
    """Frames ``[n, 1536]`` added up where they lie: ``[240 (n - 1) + 1536]``."""
    size = (len(waves) - 1) * _HOP + _SIZE
    folded = nn.functional.fold(waves.T[None], (1, size), (1, _SIZE), stride=(1, _HOP))
    return folded.reshape(-1)


class _Conv(nn.Module):
    """A layer with the names of Perth's tensors."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, *, active: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels_in, channels_out, kernel, padding=kernel // 2)
        self._active = active

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return nn.functional.leaky_relu(x) if self._active else x


def encoder_layers(hidden: int = 256) -> nn.Sequential:
    """The network, without weights."""
    return nn.Sequential(
        _Conv(_BANDS, hidden, 1),
        *(_Conv(hidden, hidden, 7) for _ in range(5)),
        _Conv(hidden, _BANDS, 1, active=False),
    )


def load_watermark(choice: str) -> PerthWatermark | None:
    """The watermark of a setting.

    Args:
        choice: ``auto`` (mark if ``resemble-perth`` is installed), ``on`` or ``off``.

    Raises:
        ModelLoadingError: the package is not installed although it is ``on``, or cannot be used.
    """
    if choice == "off":
        return None
    package = importlib.util.find_spec("perth")  # not imported
    if package is not None and package.submodule_search_locations:
        return PerthWatermark.load(Path(package.submodule_search_locations[0]) / _CHECKPOINT)
    if choice == "on":
        raise ModelLoadingError("watermark is on, but resemble-perth is not installed")
    return None
