"""Stretches of frames, and how several are run in one call of a network.

A window is padded at an edge inside its utterance, where the frames next to the edge are context and are not
used. At the beginning and at the end of an utterance the networks see zeros in every layer, which no padding
of their inputs repeats: an utterance that is one window has no edge to pad. If it is long enough, it can
be made as two windows that overlap (:meth:`AudioWindow.halves`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the usual name

from parley.runtime.batching import round_up

_MIN_FILL = 0.75  # length of a window against the longest in its batch


@dataclass(frozen=True)
class AudioWindow:
    """A stretch of frames for a network."""

    tensors: tuple[Tensor, ...]
    """``[..., k n]`` with k values for each of n frames."""
    first: bool
    """Whether the utterance begins with it."""
    last: bool
    """Whether the utterance ends with it."""

    @property
    def frames(self) -> int:
        """Its length n."""
        return self.tensors[0].shape[-1]

    @property
    def whole(self) -> bool:
        """Whether it is its utterance, and cannot be padded."""
        return self.first and self.last

    def padded(self, frames: int) -> list[Tensor]:
        """The tensors with zeros on the side where the utterance continues."""
        before = self._before(frames)
        after = frames - self.frames - before
        return [
            F.pad(tensor, (before * scale, after * scale))
            for tensor, scale in zip(self.tensors, self._scales(), strict=True)
        ]

    def write(self, places: Sequence[Tensor]) -> None:
        """Copy the tensors to where :meth:`padded` has them; ``places`` are ``[..., k frames]``."""
        for tensor, scale, place in zip(self.tensors, self._scales(), places, strict=True):
            before = self._before(place.shape[-1] // scale)
            place[..., before * scale : (before + self.frames) * scale].copy_(tensor)

    def cut(self, result: Tensor, frames: int) -> Tensor:
        """The window's part of the result for the padded tensors, ``[k frames]``."""
        scale = result.shape[-1] // frames
        before = self._before(frames)
        return result[before * scale : (before + self.frames) * scale]

    def fits(self, frames: int) -> bool:
        """Whether padding it to ``frames`` frames is possible, and cheaper than another run."""
        return self.frames == frames or (not self.whole and self.frames >= _MIN_FILL * frames)

    def halves(self, context: int) -> tuple[AudioWindow, AudioWindow]:
        """A whole utterance as two windows with ``context`` frames more than theirs at their common edge.

        Of more than ``2 * context + 1`` frames.
        """
        middle = self.frames // 2
        left = [t[..., : (middle + context) * k] for t, k in zip(self.tensors, self._scales(), strict=True)]
        right = [t[..., (middle - context) * k :] for t, k in zip(self.tensors, self._scales(), strict=True)]
        return (
            AudioWindow(tuple(left), first=True, last=False),
            AudioWindow(tuple(right), first=False, last=True),
        )

    def joined(self, results: Sequence[Tensor], context: int) -> Tensor:
        """The result of a whole utterance from those of its :meth:`halves`."""
        left, right = results
        middle = self.frames // 2
        scale = len(left) // (middle + context)
        return torch.cat([left[: middle * scale], right[context * scale :]])

    def _before(self, frames: int) -> int:
        return frames - self.frames if self.last else 0

    def _scales(self) -> list[int]:
        return [tensor.shape[-1] // self.frames for tensor in self.tensors]


def group_windows(
    windows: Sequence[AudioWindow], sizes: Sequence[int] = (), max_rows: int | None = None
) -> list[list[int]]:
    """Indices of windows that share a call, the longest first.

    Args:
        windows: all of them.
        sizes: rising numbers of frames to which calls are padded: windows that are padded to the same one
            share a call. Without any, those of similar lengths do.
        max_rows: of a call.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(windows)), key=lambda index: -windows[index].frames):
        window = windows[index]
        if groups and len(groups[-1]) != max_rows:
            longest = windows[groups[-1][0]].frames
            same = round_up(window.frames, sizes) == round_up(longest, sizes)
            if window.fits(longest) or (same and not window.whole):
                groups[-1].append(index)
                continue
        groups.append([index])
    return groups


def run_windows(run: Callable[..., Tensor], windows: Sequence[AudioWindow]) -> list[Tensor]:
    """Run on windows of similar lengths in one call each; the results in the windows' order."""
    results: dict[int, Tensor] = {}
    for members in group_windows(windows):
        frames = windows[members[0]].frames
        stacked = zip(*(windows[member].padded(frames) for member in members), strict=True)
        output = run(*(torch.stack(tensors) for tensors in stacked))
        for member, result in zip(members, output, strict=True):
            results[member] = windows[member].cut(result, frames)
    return [results[index] for index in range(len(windows))]
