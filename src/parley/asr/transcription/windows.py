"""Where speech that is too long for one run of the encoder is cut.

A window is encoded with frames of context on both sides, and only what lies between the contexts
is kept. The windows of a stretch lie side by side, so that the kept parts together are the whole.
See NeMo's ``speech_to_text_streaming_infer_rnnt.py``, which reads long recordings in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from parley.asr.checkpoint import ParakeetConfig
from parley.errors import ModelLoadingError


@dataclass(frozen=True)
class Window:
    """One run of the encoder, over feature frames ``start`` to ``end`` of a stretch."""

    start: int
    end: int
    first: int
    """Encoded frame of this run from which on they are kept."""
    kept: int | None
    """How many are kept; None: all that follow."""


@dataclass(frozen=True)
class WindowPlan:
    """Sizes in feature frames, all of them whole encoder frames."""

    chunk: int
    left: int
    right: int
    subsampling: int

    @classmethod
    def of(cls, config: ParakeetConfig, *, window_ms: int, left_ms: int, right_ms: int) -> WindowPlan:
        """Plan windows of at most ``window_ms``, of which the contexts are a part.

        Raises:
            ModelLoadingError: nothing would be left between the contexts.
        """
        left, right, whole = (
            milliseconds // config.frame_ms * config.subsampling_factor
            for milliseconds in (left_ms, right_ms, window_ms)
        )
        chunk = whole - left - right
        if chunk < config.subsampling_factor:
            raise ModelLoadingError(
                f"window_ms is {window_ms}; it must leave {config.frame_ms} ms beside contexts of "
                f"{left_ms} and {right_ms} ms"
            )
        return cls(chunk, left, right, config.subsampling_factor)

    @property
    def longest(self) -> int:
        """Feature frames of the longest window."""
        return self.left + self.chunk + self.right

    def windows(self, frames: int) -> list[Window]:
        """The windows of a stretch of ``frames`` feature frames; one if it fits into one."""
        if frames <= self.longest:
            return [Window(0, frames, 0, None)]
        windows: list[Window] = []
        position = 0
        while frames - position > self.chunk + self.right:
            windows.append(self._window(position, self.chunk + self.right, self.chunk))
            position += self.chunk
        windows.append(self._window(position, frames - position, None))
        return windows

    def _window(self, position: int, ahead: int, kept: int | None) -> Window:
        start = max(position - self.left, 0)
        return Window(
            start,
            position + ahead,
            (position - start) // self.subsampling,
            None if kept is None else kept // self.subsampling,
        )
