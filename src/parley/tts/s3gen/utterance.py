"""One utterance on its way from tokens to audio."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import soxr
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.errors import InvalidInputError
from parley.tts.s3gen.batch import AudioVoice, FlowRow
from parley.tts.s3gen.conformer import FRAMES_PER_TOKEN, LOOKAHEAD
from parley.tts.s3gen.hift import HOP, SAMPLE_RATE
from parley.tts.s3gen.noise import flow_noise, prompt_noise
from parley.tts.s3gen.past import Past, bounded
from parley.tts.s3gen.schedule import ChunkSchedule
from parley.tts.s3gen.vocoding import VocoderState
from parley.tts.watermark import Watermark, WatermarkStream

_SILENCE = SAMPLE_RATE // 50
"""Samples at the beginning that are silenced, and as many that are faded in.

As upstream does: the end of the reference speech can be heard there.
"""


class PcmOutput:
    """Keeps the filter's state between chunks. Floats until the end: soxr dithers integers.

    Args:
        rate: hertz of what comes out.
        mark: adds a watermark; None: there is none.
    """

    def __init__(self, rate: int, mark: WatermarkStream | None = None) -> None:
        self.rate = rate
        self._mark = mark
        self.samples = 0
        """Samples given so far."""
        self._received = 0
        self._resampler = (
            None
            if rate == SAMPLE_RATE
            else soxr.ResampleStream(SAMPLE_RATE, rate, 1, dtype="float32", quality="HQ")
        )

    def push(self, audio: NDArray[np.float32], *, last: bool) -> NDArray[np.int16]:
        """The PCM that is certain so far; i16 ``[m]``, m may be 0."""
        faded = audio * fade_in(self._received, len(audio))
        self._received += len(audio)
        if self._mark is not None:
            faded = self._mark.push(faded, last=last)
        if self._resampler is not None:
            faded = self._resampler.resample_chunk(faded, last=last)
        self.samples += len(faded)
        pcm: NDArray[np.int16] = np.round(np.clip(faded, -1.0, 1.0) * 32767.0).astype(np.int16)
        return pcm


def fade_in(first: int, count: int) -> NDArray[np.float32]:
    """Gain of samples ``first`` ... of an utterance, f32 ``[count]``."""
    # The first step of the ramp is 0 and the last is 1.
    ramp = (np.arange(first, first + count) - _SILENCE) / (_SILENCE - 1)
    gain: NDArray[np.float32] = ((1.0 - np.cos(np.pi * np.clip(ramp, 0.0, 1.0))) / 2.0).astype(np.float32)
    return gain


TOKENS_PER_SECOND = 25
_OVERLAP = 8  # frames of the crossfade
SAMPLES_PER_TOKEN = FRAMES_PER_TOKEN * HOP


@dataclass(frozen=True)
class Plan:
    """How all utterances of a model are made."""

    schedule: ChunkSchedule = field(default_factory=ChunkSchedule)
    full_attention: bool = False
    """Let frames see what follows them, and crossfade where a chunk was made without knowing it.

    For weights whose audio suffers from chunked attention. Streamed audio then differs from
    audio made in one piece.
    """
    recompute: bool = False
    """Run the flow over the prompt and everything again for each chunk, instead of keeping the past.

    The audio is the same. For guided checkpoints, whose past needs ten times the memory.
    """
    past_tokens: int = 0
    """How far before its chunk a frame sees the utterance; 0: to its beginning. Bounds what is kept."""
    hold_back: int = 12
    """See :mod:`parley.tts.s3gen.vocoding`."""
    max_tokens: int = 1_500
    """Of one utterance: 60 s."""
    max_step: int = 200
    """New tokens of one step, unless a chunk or the end asks for more."""
    watermark: Watermark | None = None
    """Marks all audio, which then comes 214 ms later."""

    @property
    def keeps_past(self) -> bool:
        """Whether what was made for a chunk serves the next ones."""
        return not (self.full_attention or self.recompute)


class AudioUtterance:
    """What is known of an utterance; bounded by ``plan.max_tokens`` and ``plan.past_tokens``.

    Args:
        voice: who speaks.
        plan: how.
        seed: of all noise. Same seed, voice and tokens: same audio.
        rate: hertz of the audio.
    """

    def __init__(self, voice: AudioVoice, plan: Plan, *, seed: int, rate: int) -> None:
        self.voice = voice
        self.ended = False
        """Whether all tokens have come."""
        self.finished = False
        """Whether all audio was made."""
        self.vocoder = VocoderState(seed, plan.hold_back)
        self.output = PcmOutput(rate, plan.watermark.begin() if plan.watermark else None)
        self._plan = plan
        self._seed = seed
        self._tokens = np.zeros(0, np.int64)
        self._done = 0  # tokens whose frames are made
        self._past: tuple[Past, ...] = ()  # of the tokens before `_done`, piece by piece
        self._tail = torch.zeros(0)  # frames before `_done` that wait for the crossfade

    @property
    def tokens(self) -> int:
        """Tokens that have come."""
        return len(self._tokens)

    def push(self, tokens: NDArray[np.integer[Any]]) -> None:
        """Append tokens.

        Raises:
            InvalidInputError: the utterance has ended, or becomes too long.
        """
        if self.ended:
            raise InvalidInputError("tokens after the last one")
        if self.tokens + len(tokens) > self._plan.max_tokens:
            raise InvalidInputError(f"more than {self._plan.max_tokens} tokens in one utterance")
        self._tokens = np.concatenate([self._tokens, tokens.astype(np.int64)])

    def end(self) -> None:
        """No token follows."""
        self.ended = True
        self.finished = self.tokens == 0

    def next_end(self) -> int | None:
        """The token up to which frames can be made now; None when more tokens are needed."""
        if self.finished:
            return None
        # A chunk needs its look-ahead, unless everything ends with it.
        complete = self._plan.schedule.ends(self._plan.schedule.complete(self.tokens - LOOKAHEAD))
        if self.ended:
            complete.append(self.tokens)
        ahead = [end for end in complete if end > self._done]
        if not ahead:
            return None
        if self._done == 0:
            return ahead[0]  # the first audio must not wait for more than it needs
        return max([end for end in ahead if end - self._done <= self._plan.max_step], default=ahead[0])

    @property
    def keeps_past(self) -> bool:
        """See :class:`Plan`."""
        return self._plan.keeps_past

    def row(self, end: int, prompt: Past | None = None) -> FlowRow:
        """The flow's work up to token ``end``.

        Args:
            end: as :meth:`next_end` says.
            prompt: the voice's past, if it has a prompt and pasts are kept.
        """
        known = self._tokens if self.is_last(end) else self._tokens[: end + LOOKAHEAD]
        ahead = len(known) - end
        chunks, firsts = self._sight(len(known))
        begin = self._done if self.keeps_past else 0
        noise = flow_noise(self._seed, FRAMES_PER_TOKEN * (end - begin), FRAMES_PER_TOKEN * begin)
        if self.keeps_past:
            past = self._past if prompt is None else (prompt, *self._past)
            return FlowRow(self.voice, known[begin:], ahead, chunks[begin:], firsts[begin:], noise, past=past)
        first = len(self.voice.tokens)
        zeros = np.zeros(first, np.int64)
        return FlowRow(
            self.voice,
            np.concatenate([self.voice.tokens, known]),
            ahead,
            np.concatenate([zeros, chunks]),
            np.concatenate([zeros, firsts]),
            np.concatenate([prompt_noise(FRAMES_PER_TOKEN * first), noise]),
            prompt=first,
        )

    def frames_until(self, end: int) -> int:
        """Frames of :meth:`row`."""
        begin = self._done if self.keeps_past else -len(self.voice.tokens)
        return FRAMES_PER_TOKEN * (end - begin)

    def is_last(self, end: int) -> bool:
        """Whether the utterance ends at token ``end``."""
        return self.ended and end == self.tokens

    def frames(self, mel: Tensor, end: int, kept: Past | None = None) -> Tensor:
        """Of the spectrogram up to token ``end``, the frames that are new, ``[80, n]``.

        Args:
            mel: of :meth:`row` without the prompt, ``[80, m]``.
            end: as given to :meth:`row`.
            kept: of :meth:`row`, if pasts are kept.
        """
        begin = mel.shape[1] - FRAMES_PER_TOKEN * (end - self._done)
        new = mel[:, begin:]
        self._done = end
        last = self.is_last(end)
        self.finished = last
        if kept is not None:
            # Not joined: that would copy all of them each time.
            past = (*self._past, kept)
            self._past = bounded(past, self._plan.past_tokens) if self._plan.past_tokens else past
        if not self._plan.full_attention:
            return new
        overlap = self._tail.shape[-1] if self._tail.numel() else 0
        if overlap:
            rising = torch.hamming_window(2 * overlap, periodic=False, device=mel.device)[:overlap]
            rising = rising / (rising + rising.flip(0))
            fresh = mel[:, begin - overlap : begin]
            new = torch.cat([self._tail + (fresh - self._tail) * rising, new], dim=1)
        keep = 0 if last else min(_OVERLAP, new.shape[1])
        self._tail = new[:, new.shape[1] - keep :].clone()
        return new[:, : new.shape[1] - keep]

    def _sight(self, tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Chunk of each token, and the first token that it may see."""
        if self._plan.full_attention:
            return np.zeros(tokens, np.int64), np.zeros(tokens, np.int64)
        schedule, far = self._plan.schedule, self._plan.past_tokens
        chunks = np.array(schedule.numbers(tokens), np.int64)
        if not far:
            return chunks, np.zeros(tokens, np.int64)
        return chunks, np.maximum(np.array(schedule.starts(tokens), np.int64) - far, 0)


def prompt_row(voice: AudioVoice) -> FlowRow:
    """The flow's work to make the past that all utterances of a voice share."""
    size = len(voice.tokens)
    zeros = np.zeros(size, np.int64)
    noise = prompt_noise(FRAMES_PER_TOKEN * size)
    return FlowRow(voice, voice.tokens, 0, zeros, zeros, noise, prompt=size)
