"""Make the tiny Parakeet TDT that stands in for the real recogniser: data, training, ONNX export.

The three steps run one after the other, and each continues what an earlier run left in ``--work``:

``data``    synthesize the clips (about 5 minutes on two cores)
``train``   train for ``--minutes`` on one core; a stopped run continues from its checkpoint
``export``  write ``encoder-model.onnx``, ``decoder_joint-model.onnx``, ``vocab.txt`` and
            ``config.json`` into ``--out``, unless they differ from NeMo; works on any checkpoint, also of a
            running training

Sentences, voices, noise and weights follow from ``--seed``.  The learning rate follows the clock,
so weights repeat exactly only with ``--steps``.

Needs NeMo (``pip install 'nemo_toolkit[asr]' onnx jiwer``) and the programs of ``tiny.speech``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from tiny.asr_model import DURATIONS, build, make_tokenizer
from tiny.asr_training import Recipe, Trainer
from tiny.augment import clean
from tiny.corpus import SPLITS, make
from tiny.exporting import COMPARED_CLIPS, OFFLINE, export
from tiny.training import Budget, make_parser
from tiny.transducer_loss import tdt_loss

ROOT = Path(__file__).resolve().parents[2]
RECIPE = Recipe(loss=partial(tdt_loss, durations=DURATIONS, sigma=0.02))
STEPS = ("all", "data", "train", "export")


def main() -> None:
    """Run the steps asked for."""
    parser = make_parser(__doc__, ROOT / "out/tiny-asr", ROOT / "models/tiny-parakeet-tdt", minutes=50)
    parser.add_argument("step", nargs="?", choices=STEPS, default="all", help="default: %(default)s")
    args = parser.parse_args()

    clips = {
        split: make(split, count, args.seed, args.work / "data", args.processes)
        for split, count in SPLITS.items()
    }
    if args.step == "data":
        return
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer(clips["train"].texts, args.work / "tokenizer")
    model = build(args.work / "tokenizer")
    train = clips.pop("train")
    trainer = Trainer(model, tokenizer, train, args.work, seed=args.seed, recipe=RECIPE, trials=clips)
    if args.step in ("train", "all"):
        trainer.run(Budget(args.minutes, args.steps))
    if args.step in ("export", "all"):
        heard = [clean(clips["sentences"][index]) for index in range(COMPARED_CLIPS)]
        export(model, OFFLINE, args.out, heard)


if __name__ == "__main__":
    main()
