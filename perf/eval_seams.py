"""Streams utterances of every kind through S3Gen and looks for clicks where pieces were joined.

Voices, lengths, chunk sizes, rates, bounds of the past and the pieces in which tokens arrive are
drawn; groups of up to eight share their steps. Both the ends of the pieces of audio and those of the
flow's chunks count as seams. Then a click is put at each seam, to see how many the detector finds.
Fails if a seam is flagged.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from clicks import CLICK, clicks, seam_scores

from parley_torch.tts.s3gen import checkpoint
from parley_torch.tts.s3gen.synthesizer import AudioSynthesizer

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "build"), str(ROOT / "tests" / "torch" / "tts" / "s3gen")]

from random_streams import Stream, random_streams  # noqa: E402

from chatterbox_export.small_s3gen import write_small_s3gen  # noqa: E402

_CLICK = 4.0  # how far the seeded click sticks out, of the utterance's root mean square


def main() -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", type=Path, help="folder with a checkpoint (default: a small random one)")
    parser.add_argument("--utterances", type=int, default=500, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        weights = args.weights or write_small_s3gen(Path(folder)).parent
        networks = checkpoint.load(checkpoint.find_checkpoint(weights))
    synthesizer = AudioSynthesizer(networks, torch.device("cpu"))
    flagged = seconds = 0.0
    scores: list[float] = []
    seeded: list[bool] = []
    for stream in random_streams(synthesizer, random.Random(args.seed), args.utterances):
        flagged += len(stream.clicks())
        seconds += len(stream.audio) / stream.rate
        scores += list(seam_scores(stream.audio, stream.seams(), stream.rate))
        seeded += [_found(stream, seam) for seam in stream.seams()]
    print(
        f"{args.utterances} utterances, {seconds:.0f} s, {len(scores)} seams: {flagged:.0f} flagged; "
        f"highest score {max(scores):.2f}, flagged above {CLICK:g}; "
        f"of a click put at each seam {np.mean(seeded):.1%} were found"
    )
    return 1 if flagged else 0


def _found(stream: Stream, seam: int) -> bool:
    """Whether a click at a seam is flagged."""
    audio = stream.audio.astype(float)
    audio[seam] += _CLICK * audio.std()
    return clicks(np.clip(audio, -32768, 32767).astype(np.int16), [seam], stream.rate) == [seam]


if __name__ == "__main__":
    sys.exit(main())
