"""A model of any family of these networks: what is common to them, from audio to tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.greedy import Tokens
from parley.asr.pipeline.step import milliseconds
from parley.asr.segments.reader import ReadOptions
from parley.runtime.onnx import Stop

SHORTEST = 3_200
"""Samples that every front end and encoder can do with (200 ms)."""
LONGEST = 30 * 16_000
"""Samples of a stretch; what an encoder with attention needs grows with their square."""


@dataclass(frozen=True)
class RowTokens:
    """What one row of a run said."""

    tokens: Tokens
    """Ids of the vocabulary. Each lasts for at least a frame."""
    timed: bool = True
    """Whether the frames of the tokens are known."""
    language: str = ""
    """The language that the network says it has heard; empty: it does not say."""


@dataclass(frozen=True)
class RunResult:
    """What a run of the networks made of its rows."""

    rows: list[RowTokens]
    encoder_ms: float
    decoder_ms: float
    """Wall time."""

    @classmethod
    def timed(cls, rows: list[RowTokens], began: float, ran: float) -> RunResult:
        """The result of a run that has just been decoded; ``began`` and ``ran`` are of ``perf_counter``."""
        return cls(rows, milliseconds(ran - began), milliseconds(time.perf_counter() - ran))


class FrameNetwork(Protocol):
    """The networks of a model with their decoding; thread-safe. Apart because families differ in both."""

    most_rows: int
    """Rows that a run may have."""

    def run(
        self, features: Sequence[NDArray[np.float32]], options: Sequence[ReadOptions], stop: Stop
    ) -> RunResult:
        """Recognise stretches.

        Args:
            features: of each, f32 ``[frames, features]``.
            options: of each.
            stop: ends it from another thread.

        Raises:
            InferenceError: the networks failed, or their scores cannot be used.
            StoppedError: it was stopped.
        """
        ...


class TokenSpelling(Protocol):
    """The tokens as text: :class:`parley.asr.decoding.vocabulary.Vocabulary`, or by rules of a family."""

    @property
    def spelled(self) -> tuple[str, ...]:
        """Each token as text, with the mark before a word; empty: no text by itself."""
        ...

    def pieces_of(self, ids: Sequence[int]) -> list[bytes | None]:
        """What each of a text's tokens stands for; None: it is no part of the text."""
        ...


@dataclass(frozen=True)
class FrameModel:
    """The networks of one model with what a family has fixed about them; thread-safe."""

    features: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    """The front end: f32 ``[n]`` within ±1, 16 kHz, to f32 ``[frames, features]``."""
    network: FrameNetwork
    spelling: TokenSpelling
    frame_ms: int
    """Milliseconds of a frame in which the times of tokens count."""
    languages: tuple[str, ...]
