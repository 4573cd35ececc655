"""Make the tiny cache-aware streaming recogniser: training and ONNX export.

It learns from the clips of ``train_tiny_asr.py`` with the same tokens, and starts from that model's weights:

``train``   train for ``--minutes`` on one core; a stopped run continues from its checkpoint
``export``  write one encoder for each look-ahead, ``decoder_joint-model.onnx``, ``vocab.txt`` and
            ``config.json`` into ``--out``, unless they differ from NeMo; works on any checkpoint, also of a
            running training

The learning rate follows the clock, so weights repeat exactly only with ``--steps``.

Needs what ``train_tiny_asr.py`` needs, and its ``--work`` folder after a training as ``--offline``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch

from tiny.asr_model import make_tokenizer
from tiny.asr_training import Recipe, Trainer
from tiny.augment import Heard, clean, varied
from tiny.corpus import SPLITS, make
from tiny.exporting import COMPARED_CLIPS, STREAMING, export, halve, round_weights
from tiny.speech import SAMPLE_RATE, Samples
from tiny.streaming_model import HISTORY, USUAL, build_streaming, start_from_offline
from tiny.training import Budget, make_parser
from tiny.transducer_loss import rnnt_loss

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("all", "train", "export")
FAST_EMIT = 0.01
LONGEST_FLUSH = 0.4
"""Seconds."""


def flushed(speech: Samples, rng: np.random.Generator) -> Heard:
    """A varied clip that, in half of the cases, ends with digital silence as at the end of a stream."""
    heard = varied(speech, rng)
    if rng.random() < 0.5:
        return heard
    silence = np.zeros(int(rng.uniform(0, LONGEST_FLUSH) * SAMPLE_RATE), np.float32)
    return Heard(np.concatenate([heard.audio, silence]), heard.span)


RECIPE = Recipe(
    loss=partial(rnnt_loss, fast_emit=FAST_EMIT), flat_steps=0, hidden=USUAL, history=HISTORY, hear=flushed
)


def main() -> None:
    """Run the steps asked for."""
    parser = make_parser(
        __doc__, ROOT / "out/tiny-streaming", ROOT / "models/tiny-nemotron-streaming", minutes=75
    )
    parser.add_argument("step", nargs="?", choices=STEPS, default="all", help="default: %(default)s")
    parser.add_argument(
        "--offline",
        type=Path,
        default=ROOT / "out/tiny-asr",
        help="clips, tokenizer and checkpoint of the offline model",
    )
    args = parser.parse_args()

    clips = {
        split: make(split, count, args.seed, args.offline / "data", args.processes)
        for split, count in SPLITS.items()
    }
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(clips["train"].texts, args.offline / "tokenizer")
    model = build_streaming(args.offline / "tokenizer")
    known = torch.load(args.offline / "checkpoint.pt", weights_only=True)
    start_from_offline(model, known["model"])
    train = clips.pop("train")
    options = {"seed": args.seed, "recipe": RECIPE, "trials": clips, "ctc": known["ctc"]}
    trainer = Trainer(model, tokenizer, train, args.work, **options)
    if args.step in ("train", "all"):
        trainer.run(Budget(args.minutes, args.steps))
    if args.step in ("export", "all"):
        round_weights(model)
        # A new model has a short table of positions.
        exported = build_streaming(args.offline / "tokenizer")
        exported.load_state_dict(model.state_dict())
        heard = [clean(clips["sentences"][index]) for index in range(COMPARED_CLIPS)]
        export(exported, STREAMING, args.out, heard, pack=halve)


if __name__ == "__main__":
    main()
