"""Utterances of every kind, streamed side by side, and where their pieces were joined."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from clicks import clicks
from numpy.typing import NDArray
from s3gen_fakes import make_tokens, make_voice

from parley_torch.tts.s3gen.scheduling import ChunkSchedule
from parley_torch.tts.s3gen.synthesizer import AudioSynthesizer, Job
from parley_torch.tts.s3gen.utterance import SAMPLES_PER_TOKEN, AudioUtterance, Plan

_VOICES = [make_voice(prompt, seed) for seed, prompt in enumerate((0, 10, 25, 40, 60, 75))]
_RATES = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
_SCHEDULES = ((12, 13, 25, 50, 100), (10, 15, 25), (5,), (20, 7, 40), (30, 60))


@dataclass
class Stream:
    """One utterance on its way."""

    utterance: AudioUtterance
    tokens: NDArray[np.int64]
    pieces: list[NDArray[np.int16]]
    chunk_ends: list[int]
    """Tokens at which a run of the flow ended."""

    @property
    def rate(self) -> int:
        """Hertz."""
        return self.utterance.output.rate

    @property
    def audio(self) -> NDArray[np.int16]:
        """All of it."""
        return np.concatenate(self.pieces)

    def seams(self) -> list[int]:
        """Samples at which something was joined: pieces of audio, and chunks of the flow."""
        pieces = np.cumsum([len(piece) for piece in self.pieces])[:-1]
        chunks = [round(end * SAMPLES_PER_TOKEN * self.rate / 24_000) for end in self.chunk_ends[:-1]]
        return sorted({*map(int, pieces), *chunks})

    def clicks(self) -> list[int]:
        """The seams that can be heard."""
        return clicks(self.audio, self.seams(), self.rate)


def random_streams(synthesizer: AudioSynthesizer, rng: random.Random, count: int) -> Iterator[Stream]:
    """So many utterances, made in groups that share their steps."""
    while count > 0:
        group = _group(rng, min(count, rng.randint(1, 8)))
        count -= len(group)
        while not all(stream.utterance.finished for stream in group):
            for stream in group:
                _push(rng, stream)
            ready = [(stream, end) for stream in group if (end := stream.utterance.next_end()) is not None]
            results = synthesizer.step([Job(stream.utterance, end) for stream, end in ready])
            for (stream, end), result in zip(ready, results, strict=True):
                assert isinstance(result, np.ndarray), result
                stream.pieces.append(result)
                stream.chunk_ends.append(end)
        yield from group


def _group(rng: random.Random, size: int) -> list[Stream]:
    plan = Plan(
        schedule=ChunkSchedule(rng.choice(_SCHEDULES)),
        past_tokens=rng.choice((0, 0, 40)),
        max_step=rng.choice((1, 200)),
        full_attention=rng.random() < 0.1,
    )
    return [
        Stream(
            AudioUtterance(rng.choice(_VOICES), plan, seed=rng.randrange(10**6), rate=rng.choice(_RATES)),
            make_tokens(rng.randint(2, 120), rng.randrange(10**6)),
            [],
            [],
        )
        for _ in range(size)
    ]


def _push(rng: random.Random, stream: Stream) -> None:
    utterance = stream.utterance
    if utterance.ended:
        return
    count = rng.choice((0, 1, 4, 15, 40))
    utterance.push(stream.tokens[utterance.tokens : utterance.tokens + count])
    if utterance.tokens == len(stream.tokens):
        utterance.end()
