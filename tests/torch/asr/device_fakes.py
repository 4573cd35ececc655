"""The shipped streaming model on torch, and captures that are counted."""

from __future__ import annotations

import numpy as np
import torch

from parley.asr.streaming.utterance import StreamingUtterance
from parley_torch.asr.loading import DeviceSettings, load_streaming

CPU = torch.device("cpu")
LOOK_AHEADS = (80, 160, 560, 1120)


class CountedCapture:
    """Repeats functions in the place of graphs, and counts how often that is prepared."""

    def __init__(self):
        self.captured = 0
        self.replayed = 0

    def __call__(self, run):
        self.captured += 1
        result = run()

        def replay():
            self.replayed += 1
            result.copy_(run())

        return replay, result


def make_recognizer(export, look_aheads=LOOK_AHEADS, *, slots=8, sizes=(1, 2, 4), beam=None, capture=None):
    recognizer, _ = load_streaming(
        export,
        look_aheads,
        DeviceSettings(CPU, row_sizes=sizes),
        slots=slots,
        audio=400_000,
        beam_size=beam,
        capture=capture,
    )
    return recognizer


def begin(recognizer, chunk, **options):
    utterance = StreamingUtterance(1, 0, chunk=chunk, **options)
    utterance.slot = recognizer.acquire()
    return utterance


def add(recognizer, utterance, samples, *, last=False):
    recognizer.write(utterance, samples)
    utterance.push(samples)
    utterance.ended = last


def step(recognizer, utterances):
    result = recognizer.recognize(utterances)
    result.keep([utterance.slot for utterance in utterances])
    return result


def recognize(recognizer, recordings, chunks, *, piece=4_000, boosting=None, prompts=None):
    """Each recording in pieces, all of them side by side; their utterances."""
    utterances = [
        begin(recognizer, chunk, boosting=boosting, prompt=prompt)
        for chunk, prompt in zip(chunks, prompts or [0] * len(chunks), strict=True)
    ]
    for at in range(0, max(map(len, recordings)), piece):
        for utterance, audio in zip(utterances, recordings, strict=True):
            if not utterance.ended:
                add(recognizer, utterance, audio[at : at + piece], last=at + piece >= len(audio))
        step(recognizer, utterances)
    for utterance in utterances:
        recognizer.release(utterance.slot)
    return utterances


def same_tokens(found, expected, *, tolerance=1e-4):
    return (
        found.ids.tolist() == expected.ids.tolist()
        and found.frames.tolist() == expected.frames.tolist()
        and np.allclose(found.confidences, expected.confidences, rtol=0, atol=tolerance)
    )
