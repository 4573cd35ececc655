"""Voices, tokens and utterances for tests of S3Gen."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parley_torch.tts.s3gen.flow import AudioVoice
from parley_torch.tts.s3gen.synthesizer import Job
from parley_torch.tts.s3gen.utterance import AudioUtterance

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


class Recording:
    """In place of a graph: the same call again, whose result goes where the first one's was."""

    def __init__(self):
        self.captured = 0
        self.replayed = 0
        self.threads = set()

    def __call__(self, run):
        self.captured += 1
        self.threads.add(threading.current_thread())
        result = run().clone()

        def replay():
            self.replayed += 1
            result.copy_(run())

        return replay, result


class HostReads(TorchDispatchMode):
    """Counts operations with which a program on a GPU waits for the device, on any device."""

    _READS = (
        "_local_scalar_dense",
        "equal",
        "nonzero",
        "masked_select",
        "unique",
        "repeat_interleave.Tensor",
    )

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("aten.")
        if name.startswith(self._READS) and "output_size" not in (kwargs or {}):
            self.operations.append(name)
        return func(*args, **(kwargs or {}))
