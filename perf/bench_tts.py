"""How fast S3Gen speaks, batched across sessions and one after the other: ``make bench-tts``.

All sessions begin at once, and are served by the model's own scheduler, chunk by chunk. *Batched*:
all that are ready share a run. *Unbatched*: the same with runs of one. Both are measured in turn in
the same process; the best round counts for the throughput, all rounds for the first audio.

The weights are random. Without ``--real-size`` every width is an eighth of the published one; all
layers are there, so that the parts cost in proportion what the published ones cost. ``--weights``
takes a checkpoint. With ``--chain``, text goes through Triton and the models chatterbox, t3 and
s3gen, with a small random checkpoint.

Beside them stands the floor: the operations that the audio needs, each frame made once, at the
speed that a large matrix product has on the machine.
"""

from __future__ import annotations

import argparse
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from harness.stats import p50_p95, text_of
from numpy.typing import NDArray
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from tts_chain import measure_chain

from parley.errors import ParleyError
from parley_torch.tts.s3gen import checkpoint
from parley_torch.tts.s3gen.checkpoint import Networks
from parley_torch.tts.s3gen.flow import AudioVoice, Flow
from parley_torch.tts.s3gen.messages import AudioChunk, OpenUtterance
from parley_torch.tts.s3gen.networks import MEL_BANDS, Estimator, TokenEncoder
from parley_torch.tts.s3gen.scheduling import S3GenLimits
from parley_torch.tts.s3gen.service import S3GenService, ServiceLimits
from parley_torch.tts.s3gen.state import FRAMES_PER_TOKEN
from parley_torch.tts.s3gen.synthesizer import AudioSynthesizer, Job
from parley_torch.tts.s3gen.utterance import AudioUtterance, Plan
from parley_torch.tts.s3gen.vocoder import HOP, Vocoder
from parley_torch.tts.t3.request import TOKENS_PER_SECOND

PROMPT_TOKENS = 75
_DEADLINE_S = 900.0
PLAN = Plan(max_step=1)
"""Chunk by chunk, as when tokens come no faster than they are used."""

_MATRIX = 2_048
VOCABULARY = 6561
_SMALL = 8  # the fraction of the published widths
_SESSIONS = (1, 2, 4, 8, 16, 32)
_REAL_SESSIONS = (1, 2, 4, 8)
_HEADER = """\
         | seconds of audio per second            | real-time | first audio ms, p50 / p95
sessions | batched unbatched   gain  of the floor |    factor |      batched     unbatched"""


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
    """One round of a service of its own; see :func:`speak_at_once`."""
    row_cost = 1.0 if synthesizer.device.type == "cpu" else S3GenLimits.row_cost
    batch = S3GenLimits(max_batch=max_batch, row_cost=row_cost)
    service = S3GenService(synthesizer, plan, ServiceLimits(batch=batch, max_utterances=level.sessions))
    try:
        speak_at_once(service, level, tokens)
    finally:
        service.close()


def speak_at_once(service: S3GenService, level: Level, tokens: int) -> None:
    """All sessions begin at once, with all of their tokens, and are heard to their ends."""
    sinks = [_Sink(time.perf_counter) for _ in range(level.sessions)]
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
        rng.integers(0, 6561, PROMPT_TOKENS),
        rng.standard_normal((2 * PROMPT_TOKENS, 80)).astype(np.float32),
    )
    return voice, rng.integers(0, 6561, tokens)


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


# Of the CPU's kernel, which the counter does not count.
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


_ENCODER, _HIDDEN, _HEADS, _LAYERS, _UP_LAYERS = 512, 2048, 8, 6, 4
_ESTIMATOR, _INNER, _BLOCKS, _MID_LEVELS = 256, 512, 4, 12
_VOCODER, _PITCH = 512, 512


def random_networks(fraction: int, *, meanflow: bool = True) -> Networks:
    """Networks whose widths are the published ones divided by ``fraction`` (1 to 8, a power of two)."""
    torch.manual_seed(0)
    encoder = TokenEncoder(_ENCODER // fraction, _HEADS, _HIDDEN // fraction, _LAYERS, _UP_LAYERS)
    estimator = Estimator(_ESTIMATOR // fraction, _INNER // fraction, _BLOCKS, _MID_LEVELS, meanflow=meanflow)
    flow = Flow(VOCABULARY, encoder, estimator)
    vocoder = Vocoder(_VOCODER // fraction, _PITCH // fraction)
    nn.init.constant_(vocoder.f0_predictor.classifier.bias, 150.0)  # hertz: voiced, as speech mostly is
    for network in (flow, vocoder):
        network.eval().requires_grad_(False)
    return Networks(flow, vocoder)


def main() -> None:
    """Print the tables."""
    args = _arguments()
    if args.chain:
        measure_chain(args.sessions or _SESSIONS)
        return
    torch.set_num_threads(1)  # of this thread; see Synthesizer.begin
    device = torch.device(args.device)
    networks = _networks(args)
    for network in (networks.flow, networks.vocoder):
        network.to(device)
    parameters = sum(p.numel() for network in (networks.flow, networks.vocoder) for p in network.parameters())
    flops = flops_per_second_of_audio(networks, device, args.tokens)
    best = best_rate(device, args.threads)
    print(f"S3Gen, {parameters / 1e6:.1f} M parameters, {args.device}, {args.threads} threads")
    print(f"utterances of {args.tokens / 25:.1f} s; floor: {flops / 1e9:.2f} GFLOP per second of audio,")
    print(f"{best / flops:.1f} s of audio per second at {best / 1e9:.0f} GFLOP/s")
    print(_HEADER)
    synthesizer = AudioSynthesizer(
        networks, device, voices=max(args.sessions or _SESSIONS), threads=args.threads
    )
    for sessions in args.sessions or (_REAL_SESSIONS if args.real_size else _SESSIONS):
        together, alone = Level(sessions), Level(sessions)
        # The first run of each size is slow, and makes the voices' prompts.
        shared = {"plan": replace(PLAN, recompute=args.recompute), "tokens": args.tokens}
        speak(synthesizer, Level(sessions), max_batch=args.max_batch, **shared)
        for _ in range(args.rounds):
            speak(synthesizer, together, max_batch=args.max_batch, **shared)
            speak(synthesizer, alone, max_batch=1, **shared)
        _print(together, alone, best / flops)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real-size", action="store_true", help="random weights of the published size")
    parser.add_argument("--weights", type=Path, help="folder with a checkpoint")
    parser.add_argument("--guided", action="store_true", help="random weights of the kind with ten steps")
    parser.add_argument("--recompute", action="store_true", help="without keeping the past")
    parser.add_argument("--chain", action="store_true", help="text to audio through Triton")
    parser.add_argument("--sessions", type=int, nargs="+", help="default: 1 2 4 8, small also 16 32")
    parser.add_argument("--max-batch", type=int, default=8, help="rows of a run (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=100, help="of each utterance (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: all cores")
    parser.add_argument("--device", default="cpu", help="default: %(default)s")
    return parser.parse_args()


def _networks(args: argparse.Namespace) -> Networks:
    if args.weights:
        return checkpoint.load(checkpoint.find_checkpoint(args.weights))
    return random_networks(1 if args.real_size else _SMALL, meanflow=not args.guided)


def _print(together: Level, alone: Level, floor: float) -> None:
    print(
        f"{together.sessions:8} | {together.rate:7.1f} {alone.rate:9.1f} {together.rate / alone.rate:5.2f}x "
        f"{together.rate / floor:13.0%} | {together.real_time_factor:9.3f} "
        f"| {_first_ms(together.first_audio):>12} {_first_ms(alone.first_audio):>13}",
        flush=True,
    )


def _first_ms(seconds: list[float]) -> str:
    return text_of(p50_p95([1000 * value for value in seconds]))


if __name__ == "__main__":
    main()
