"""S3Gen with random weights, and sessions that speak with it at once."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from parley.errors import ParleyError
from parley_torch.tts.s3gen.checkpoint import Networks
from parley_torch.tts.s3gen.flow import AudioVoice, Flow
from parley_torch.tts.s3gen.messages import AudioChunk, OpenUtterance
from parley_torch.tts.s3gen.networks import Estimator, TokenEncoder
from parley_torch.tts.s3gen.service import S3GenService
from parley_torch.tts.s3gen.vocoder import Vocoder
from parley_torch.tts.t3.request import TOKENS_PER_SECOND

_PROMPT_TOKENS = 75
_DEADLINE_S = 900.0
_VOCABULARY = 6561
# Published widths and numbers of layers.
_ENCODER, _HIDDEN, _HEADS, _LAYERS, _UP_LAYERS = 512, 2048, 8, 6, 4
_ESTIMATOR, _INNER, _BLOCKS, _MID_LEVELS = 256, 512, 4, 12
_VOCODER, _PITCH = 512, 512


@dataclass
class Level:
    """What was measured with a number of sessions."""

    sessions: int
    first_audio: list[float] = field(default_factory=list)
    """Seconds from a session's beginning to its first audio."""
    rates: list[float] = field(default_factory=list)
    """Seconds of audio per second, of each round."""

    @property
    def rate(self) -> float:
        """Of the best round."""
        return max(self.rates)


class _Sink:
    """Notes when the first audio came."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.error: ParleyError | None = None
        self.ended = threading.Event()

    def send(self, chunk: AudioChunk, audio: NDArray[np.int16]) -> bool:  # noqa: ARG002 - not listened to
        self.first = time.perf_counter() if self.first is None else self.first
        return True

    def finish(self) -> None:
        self.ended.set()

    def fail(self, error: ParleyError) -> None:
        self.error = error
        self.ended.set()


def speak_at_once(service: S3GenService, level: Level, tokens: int) -> None:
    """Open all sessions at once, with all of their tokens, and wait for their ends.

    Raises:
        ParleyError: a session failed.
        TimeoutError: one had no end.
    """
    sinks = [_Sink() for _ in range(level.sessions)]
    speech = [make_speech(number, tokens) for number in range(level.sessions)]
    began = time.perf_counter()
    for number, (sink, (voice, spoken)) in enumerate(zip(sinks, speech, strict=True)):
        service.open(OpenUtterance(utterance_id=str(number), seed=number, final=True), voice, spoken, sink)
    for sink in sinks:
        if not sink.ended.wait(_DEADLINE_S):
            raise TimeoutError(f"no end within {_DEADLINE_S:g} s")
        if sink.error is not None:
            raise sink.error
    seconds = time.perf_counter() - began
    level.first_audio += [sink.first - began for sink in sinks if sink.first is not None]
    level.rates.append(level.sessions * tokens / TOKENS_PER_SECOND / seconds)


def make_speech(seed: int, tokens: int) -> tuple[AudioVoice, NDArray[np.int64]]:
    """A voice, and tokens for it to speak."""
    rng = np.random.default_rng(seed)
    voice = AudioVoice(
        rng.standard_normal(192).astype(np.float32),
        rng.integers(0, _VOCABULARY, _PROMPT_TOKENS),
        rng.standard_normal((2 * _PROMPT_TOKENS, 80)).astype(np.float32),
    )
    return voice, rng.integers(0, _VOCABULARY, tokens)


def random_networks(fraction: int, *, meanflow: bool = True) -> Networks:
    """Networks whose widths are the published ones divided by ``fraction`` (1 to 8, a power of two)."""
    torch.manual_seed(0)
    encoder = TokenEncoder(_ENCODER // fraction, _HEADS, _HIDDEN // fraction, _LAYERS, _UP_LAYERS)
    estimator = Estimator(_ESTIMATOR // fraction, _INNER // fraction, _BLOCKS, _MID_LEVELS, meanflow=meanflow)
    flow = Flow(_VOCABULARY, encoder, estimator)
    vocoder = Vocoder(_VOCODER // fraction, _PITCH // fraction)
    nn.init.constant_(vocoder.f0_predictor.classifier.bias, 150.0)  # hertz: voiced, as speech mostly is
    for network in (flow, vocoder):
        network.eval().requires_grad_(False)
    return Networks(flow, vocoder)
