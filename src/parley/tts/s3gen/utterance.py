"""One utterance on its way from tokens to audio."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.errors import InvalidInputError
from parley.tts.s3gen.conformer import FRAMES_PER_TOKEN, LOOKAHEAD
from parley.tts.s3gen.flow import FlowRow, Voice
from parley.tts.s3gen.hift import HOP
from parley.tts.s3gen.noise import flow_noise
from parley.tts.s3gen.output import PcmOutput
from parley.tts.s3gen.schedule import ChunkSchedule
from parley.tts.s3gen.vocoding import VocoderState

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
    hold_back: int = 12
    """See :mod:`parley.tts.s3gen.vocoding`."""
    max_tokens: int = 1_500
    """Of one utterance: 60 s. The flow runs over all of them for the last chunk."""
    max_step: int = 200
    """New tokens of one step, unless a chunk or the end asks for more."""


class Utterance:
    """What is known of an utterance; bounded by ``plan.max_tokens``.

    Args:
        voice: who speaks.
        plan: how.
        seed: of all noise. Same seed, voice and tokens: same audio.
        rate: hertz of the audio.
    """

    def __init__(self, voice: Voice, plan: Plan, *, seed: int, rate: int) -> None:
        self.voice = voice
        self.ended = False
        """Whether all tokens have come."""
        self.finished = False
        """Whether all audio was made."""
        self.vocoder = VocoderState(seed, plan.hold_back)
        self.output = PcmOutput(rate)
        self._plan = plan
        self._seed = seed
        self._tokens = np.zeros(0, np.int64)
        self._done = 0  # tokens whose frames are made
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

    def row(self, end: int) -> FlowRow:
        """The flow's work up to token ``end``."""
        final = self.is_last(end)
        known = self._tokens if final else self._tokens[: end + LOOKAHEAD]
        frames = FRAMES_PER_TOKEN * (len(self.voice.tokens) + len(known))
        chunks = [0] * len(known) if self._plan.full_attention else self._plan.schedule.numbers(len(known))
        return FlowRow(self.voice, known, chunks, final=final, noise=flow_noise(self._seed, frames))

    def frames_until(self, end: int) -> int:
        """Length of :meth:`row`, prompt included."""
        return FRAMES_PER_TOKEN * (len(self.voice.tokens) + end)

    def is_last(self, end: int) -> bool:
        """Whether the utterance ends at token ``end``."""
        return self.ended and end == self.tokens

    def frames(self, mel: Tensor, end: int) -> Tensor:
        """Of the spectrogram up to token ``end``, the frames that are new, ``[80, n]``.

        Args:
            mel: ``[80, 2 end]`` without the prompt.
            end: as given to :meth:`row`.
        """
        new = mel[:, FRAMES_PER_TOKEN * self._done :]
        self._done = end
        last = self.is_last(end)
        self.finished = last
        if not self._plan.full_attention:
            return new
        overlap = self._tail.shape[-1] if self._tail.numel() else 0
        if overlap:
            begin = mel.shape[1] - new.shape[1] - overlap
            rising = torch.hamming_window(2 * overlap, periodic=False, device=mel.device)[:overlap]
            rising = rising / (rising + rising.flip(0))
            fresh = mel[:, begin : begin + overlap]
            new = torch.cat([self._tail + (fresh - self._tail) * rising, new], dim=1)
        keep = 0 if last else min(_OVERLAP, new.shape[1])
        self._tail = new[:, new.shape[1] - keep :].clone()
        return new[:, : new.shape[1] - keep]
