"""Voices, tokens and utterances for tests of S3Gen."""

from __future__ import annotations

import numpy as np
import torch

from parley.tts.s3gen.flow import AudioVoice
from parley.tts.s3gen.synthesizer import Job
from parley.tts.s3gen.utterance import AudioUtterance

CPU = torch.device("cpu")


def make_voice(prompt, seed=0):
    rng = np.random.default_rng(seed)
    return AudioVoice(
        rng.standard_normal(192).astype(np.float32),
        rng.integers(0, 6561, prompt),
        rng.standard_normal((2 * prompt, 80)).astype(np.float32),
    )


def make_tokens(count, seed=1):
    return np.random.default_rng(seed).integers(0, 6561, count)


class Recorded(AudioUtterance):
    """An utterance that remembers the frames and 24 kHz samples that were made of it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mel = torch.zeros(80, 0)
        self.wave = np.zeros(0, np.float32)
        push = self.output.push

        def remember(audio, *, last):
            self.wave = np.append(self.wave, audio)
            return push(audio, last=last)

        self.output.push = remember

    def frames(self, mel, end, past=None):
        new = super().frames(mel, end, past)
        self.mel = torch.cat([self.mel, new], dim=1)
        return new


def stream(synthesizer, utterance, tokens, pieces):
    """Push the tokens in pieces, and step whenever something can be made; the PCM of each step."""
    arriving = iter(range(0, len(tokens), pieces))
    audio = []
    while not utterance.finished:
        end = utterance.next_end()
        if end is not None:
            audio += synthesizer.step([Job(utterance, end)])
            continue
        begin = next(arriving, None)
        if begin is None:
            utterance.end()
        else:
            utterance.push(tokens[begin : begin + pieces])
    return audio
