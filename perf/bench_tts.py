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
from dataclasses import replace
from pathlib import Path

import torch
from tts_chain import measure_chain
from tts_floor import best_rate, flops_per_second_of_audio
from tts_networks import random_networks
from tts_report import percentiles
from tts_sessions import PLAN, Level, speak

from parley.tts.s3gen import checkpoint
from parley.tts.s3gen.checkpoint import Networks
from parley.tts.s3gen.synthesizer import AudioSynthesizer

_SMALL = 8  # the fraction of the published widths
_SESSIONS = (1, 2, 4, 8, 16, 32)
_REAL_SESSIONS = (1, 2, 4, 8)
_HEADER = """\
         | seconds of audio per second            | real-time | first audio ms, p50 / p95
sessions | batched unbatched   gain  of the floor |    factor |      batched     unbatched"""


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
        f"| {percentiles(together.first_audio)} {percentiles(alone.first_audio)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
