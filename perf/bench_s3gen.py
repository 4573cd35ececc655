"""Throughput of S3Gen's streamed synthesis, batched across sessions against one after the other.

All sessions speak as fast as they are served, in steps as the model makes them. *Batched*: all
that are ready share a run of the flow. *Unbatched*: each has runs of its own, in turn. Both are
measured alternately in the same process, and the best of the rounds counts. On a CPU the
process's own time is measured, because other programs share the cores. Without ``--weights`` a
small random checkpoint is made.

What to expect: a batch saves what it costs to start operations, not the work that grows with the
rows (attention over all frames, convolutions, the vocoder, noise). On one core starting operations
is about a fifth of the time even with the small checkpoint, so that the gain ends at 1.2 to 1.3.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "build"))

from chatterbox_export.small_s3gen import write_small_s3gen  # noqa: E402
from parley.tts.s3gen import checkpoint  # noqa: E402
from parley.tts.s3gen.batch import Voice  # noqa: E402
from parley.tts.s3gen.synthesizer import Job, Synthesizer  # noqa: E402
from parley.tts.s3gen.utterance import Plan, Utterance  # noqa: E402

PROMPT_TOKENS = 75


@dataclass(frozen=True)
class Round:
    """One run of all sessions."""

    seconds: float
    """From first to last; with one thread on a CPU, of the process's own time."""
    flow: float
    """Of them in the flow."""
    audio: float
    """Seconds of audio made."""

    @property
    def rate(self) -> float:
        """Seconds of audio per second."""
        return self.audio / self.seconds


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, help="folder with a checkpoint")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 2, 4, 8], help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=100, help="of each utterance (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--device", default="cpu", help="default: %(default)s")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        weights = arguments.weights or write_small_s3gen(Path(folder)).parent
        networks = checkpoint.load(checkpoint.find_checkpoint(weights))
    device = torch.device(arguments.device)
    networks.flow.to(device)
    networks.vocoder.to(device)
    one_thread = arguments.device == "cpu" and arguments.threads == 1
    clock = time.process_time if one_thread else time.perf_counter
    bench = Bench(Synthesizer(networks, device), arguments.tokens, clock)
    bench.run(1, batched=True)  # the first run of everything is slow
    parameters = sum(p.numel() for network in (networks.flow, networks.vocoder) for p in network.parameters())
    print(
        f"{parameters / 1e6:.1f} M parameters, {arguments.tokens} tokens per utterance, prompt of "
        f"{PROMPT_TOKENS}, {arguments.threads} threads, {arguments.device}"
    )
    print("sessions  batched  unbatched  gain   flow alone: gain   (seconds of audio per second)")
    for sessions in arguments.sessions:
        pairs = [
            (bench.run(sessions, batched=True), bench.run(sessions, batched=False))
            for _ in range(arguments.rounds)
        ]
        together = min((pair[0] for pair in pairs), key=lambda one: one.seconds)
        alone = min((pair[1] for pair in pairs), key=lambda one: one.seconds)
        print(
            f"{sessions:8}  {together.rate:7.2f}  {alone.rate:9.2f}  {together.rate / alone.rate:4.2f}"
            f"   {alone.flow / together.flow:16.2f}"
        )


class Bench:
    """Runs sessions to their ends.

    Args:
        synthesizer: makes the audio.
        tokens: of each utterance.
        clock: seconds.
    """

    def __init__(self, synthesizer: Synthesizer, tokens: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._synthesizer = synthesizer
        self._tokens = tokens
        self._flow_s = 0.0
        run = synthesizer.flow

        def timed(rows: list[object], **options: bool) -> object:
            began = self._clock()
            try:
                return run(rows, **options)
            finally:
                self._flow_s += self._clock() - began

        synthesizer.flow = timed

    def run(self, sessions: int, *, batched: bool) -> Round:
        """Make the audio of so many utterances."""
        utterances = [self._utterance(seed) for seed in range(sessions)]
        self._flow_s = 0.0
        samples = 0
        began = self._clock()
        while jobs := [
            Job(utterance, end) for utterance in utterances if (end := utterance.next_end()) is not None
        ]:
            for batch in [jobs] if batched else [[job] for job in jobs]:
                results = self._synthesizer.step(batch)
                samples += sum(len(result) for result in results)
        seconds = self._clock() - began
        return Round(seconds, self._flow_s, samples / 24_000)

    def _utterance(self, seed: int) -> Utterance:
        rng = np.random.default_rng(seed)
        voice = Voice(
            rng.standard_normal(192).astype(np.float32),
            rng.integers(0, 6561, PROMPT_TOKENS),
            rng.standard_normal((2 * PROMPT_TOKENS, 80)).astype(np.float32),
        )
        # Chunk by chunk, as when tokens come no faster than they are used.
        utterance = Utterance(voice, Plan(max_step=1), seed=seed, rate=24_000)
        utterance.push(rng.integers(0, 6561, self._tokens))
        utterance.end()
        return utterance


if __name__ == "__main__":
    main()
