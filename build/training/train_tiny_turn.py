"""Make the tiny end-of-turn network: clips, training, figures and ONNX export.

``train``     synthesize the clips and train for ``--minutes`` on one core; a stopped run continues
``evaluate``  print how well held-out sentences and voices are judged
``export``    write ``smart-turn.onnx`` into ``--out``; works on any checkpoint, also of a running training

The learning rate follows the clock, so weights repeat exactly only with ``--steps``.

Needs the environment of ``make setup-export`` and what ``tiny/timed_speech.py`` needs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from tiny.training import Budget, make_parser  # noqa: E402
from tiny.turn_clips import make  # noqa: E402 - after the path
from tiny.turn_model import Probability, export  # noqa: E402
from tiny.turn_training import Trainer, figures, probabilities, trials  # noqa: E402

STEPS = ("all", "train", "evaluate", "export")
NETWORK = "smart-turn.onnx"
GROUPS = {
    "sentences": "held-out sentences",
    "voices": "held-out voices, short turns",
    "both": "both held out",
}


def main() -> None:
    """Run the steps asked for."""
    parser = make_parser(__doc__, ROOT / "out/tiny-turn", ROOT / "models/tiny-smart-turn", minutes=35)
    parser.add_argument("step", nargs="?", choices=STEPS, default="all", help="default: %(default)s")
    parser.add_argument("--threshold", type=float, default=0.5, help="of the figures")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    data = args.work / "data"
    sentences, beginnings = (
        make(split, args.seed, data, args.processes) for split in ("train", "beginnings")
    )
    trainer = Trainer(sentences, beginnings, args.work, seed=args.seed)
    if args.step in ("train", "all"):
        trainer.run(Budget(args.minutes, args.steps))
    network = trainer.network.eval()
    if args.step in ("evaluate", "all"):
        for noisy in (False, True):
            print(f"\n{'with noise' if noisy else 'clean'}: whole turns and cut ones that are heard as such")
            for split, title in GROUPS.items():
                corpus = make(split, args.seed, data, args.processes)
                some = list(trials(title, corpus, args.seed, noisy=noisy))
                found = figures(some, probabilities(Probability(network), some), args.threshold)
                for (_, label), (whole, cut) in sorted(found.items()):
                    print(f"  {title:36} {label:34} {whole:6.1%} {cut:6.1%}")
    if args.step in ("export", "all"):
        args.out.mkdir(parents=True, exist_ok=True)
        export(network, args.out / NETWORK)


if __name__ == "__main__":
    main()
