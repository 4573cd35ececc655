"""What S3Gen must compute at least, and what the machine could compute at best."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.flop_counter import FlopCounterMode
from tts_sessions import PLAN, make_speech

from parley.tts.s3gen.checkpoint import Networks
from parley.tts.s3gen.conformer import FRAMES_PER_TOKEN
from parley.tts.s3gen.estimator import MEL_BANDS
from parley.tts.s3gen.hift import HOP
from parley.tts.s3gen.synthesizer import AudioSynthesizer, Job
from parley.tts.s3gen.utterance import TOKENS_PER_SECOND, AudioUtterance

_MATRIX = 2_048


def flops_per_second_of_audio(networks: Networks, device: torch.device, tokens: int) -> float:
    """Floating point operations for a second of audio, each frame made once and nothing padded.

    Of linear layers, convolutions and attention; the rest is small. The voice's prompt is known.
    """
    synthesizer = AudioSynthesizer(networks, device)
    voice, spoken = make_speech(0, tokens)
    utterance = AudioUtterance(voice, PLAN, seed=0, rate=24_000)
    utterance.push(spoken)
    utterance.end()
    synthesizer.prepare([utterance])
    with FlopCounterMode(display=False, custom_mapping=_COUNTED) as steps:
        while (end := utterance.next_end()) is not None:
            synthesizer.step([Job(utterance, end)])
    mel = torch.zeros(1, MEL_BANDS, FRAMES_PER_TOKEN * tokens, device=device)
    source = torch.zeros(1, HOP * mel.shape[2], device=device)
    with torch.inference_mode(), FlopCounterMode(display=False) as vocoder:
        networks.vocoder.f0_predictor(mel)
        networks.vocoder(mel, source)
    flow = sum(steps.get_flop_counts()["Flow"].values())
    return (flow + vocoder.get_total_flops()) * TOKENS_PER_SECOND / tokens


def _attention(query: Sequence[int], key: Sequence[int], *_: object, **__: object) -> int:
    """Operations of an attention whose queries and keys have these shapes."""
    return 4 * math.prod(query) * key[2]


# Of the CPU's kernel, which the counter does not know.
_COUNTED = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}  # noqa: SLF001


def best_rate(device: torch.device, threads: int) -> float:
    """Floating point operations per second of a large matrix product, single precision."""
    # In a thread of its own, whose helpers go with it; see Synthesizer.begin.
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,)) as thread:
        return thread.submit(_best_rate, device).result()


def _best_rate(device: torch.device) -> float:
    matrix = torch.ones(_MATRIX, _MATRIX, device=device)
    best = 0.0
    for _ in range(5):
        _wait(device)
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        _wait(device)
        best = max(best, 2 * _MATRIX**3 / (time.perf_counter() - began))
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
