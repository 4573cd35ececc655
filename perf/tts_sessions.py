"""Sessions that speak at once through S3Gen, as the model ``s3gen`` serves them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parley.errors import ParleyError
from parley.tts.s3gen.batch import AudioVoice
from parley.tts.s3gen.messages import AudioChunk, OpenUtterance
from parley.tts.s3gen.scheduler import S3GenLimits
from parley.tts.s3gen.service import S3GenService, ServiceLimits
from parley.tts.s3gen.synthesizer import AudioSynthesizer
from parley.tts.s3gen.utterance import TOKENS_PER_SECOND, Plan

PROMPT_TOKENS = 75
_DEADLINE_S = 900.0
PLAN = Plan(max_step=1)
"""Chunk by chunk, as when tokens come no faster than they are used."""


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

    @property
    def real_time_factor(self) -> float:
        """Time that a session needs for a second of audio beside the others."""
        return self.sessions / self.rate


class _Sink:
    """Notes when the first audio came."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.first: float | None = None
        self.error: ParleyError | None = None
        self.ended = threading.Event()

    def send(self, chunk: AudioChunk, audio: NDArray[np.int16]) -> bool:  # noqa: ARG002 - not listened to
        """Audio."""
        self.first = self._clock() if self.first is None else self.first
        return True

    def finish(self) -> None:
        """The end."""
        self.ended.set()

    def fail(self, error: ParleyError) -> None:
        """A failure."""
        self.error = error
        self.ended.set()


def speak(
    synthesizer: AudioSynthesizer, level: Level, *, tokens: int, max_batch: int, plan: Plan = PLAN
) -> None:
    """One round: all sessions begin at once, with all of their tokens, and are heard to their ends."""
    row_cost = 1.0 if synthesizer.device.type == "cpu" else S3GenLimits.row_cost
    batch = S3GenLimits(max_batch=max_batch, row_cost=row_cost)
    service = S3GenService(synthesizer, plan, ServiceLimits(batch=batch, max_utterances=level.sessions))
    sinks = [_Sink(time.perf_counter) for _ in range(level.sessions)]
    speech = [make_speech(number, tokens) for number in range(level.sessions)]
    try:
        began = time.perf_counter()
        for number, (sink, (voice, spoken)) in enumerate(zip(sinks, speech, strict=True)):
            service.open(
                OpenUtterance(utterance_id=str(number), seed=number, final=True), voice, spoken, sink
            )
        for sink in sinks:
            if not sink.ended.wait(_DEADLINE_S):
                raise TimeoutError(f"no end within {_DEADLINE_S:g} s")
            if sink.error is not None:
                raise sink.error
        seconds = time.perf_counter() - began
    finally:
        service.close()
    level.first_audio += [sink.first - began for sink in sinks if sink.first is not None]
    level.rates.append(level.sessions * tokens / TOKENS_PER_SECOND / seconds)


def make_speech(seed: int, tokens: int) -> tuple[AudioVoice, NDArray[np.int64]]:
    """A voice, and tokens for it to speak."""
    rng = np.random.default_rng(seed)
    voice = AudioVoice(
        rng.standard_normal(192).astype(np.float32),
        rng.integers(0, 6561, PROMPT_TOKENS),
        rng.standard_normal((2 * PROMPT_TOKENS, 80)).astype(np.float32),
    )
    return voice, rng.integers(0, 6561, tokens)
