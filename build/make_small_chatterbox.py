"""Make a small random Chatterbox checkpoint with the published key names, for tests and trials.

It speaks noise. Everything that loads a published checkpoint loads it::

    python build/make_small_chatterbox.py /tmp/small-chatterbox
    PARLEY_WEIGHTS_T3=/tmp/small-chatterbox make serve PROFILE=tiny
"""

from __future__ import annotations

import argparse
from pathlib import Path

from chatterbox_export.small_published import write_small_published
from chatterbox_export.small_s3gen import write_small_s3gen
from chatterbox_export.small_t3 import CHECKPOINTS, write_small_t3


def main() -> None:
    """Run the program."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--variant", choices=list(CHECKPOINTS), default="original")
    arguments.add_argument("--seed", type=int, default=0, help="of the weights")
    arguments.add_argument(
        "--published",
        action="store_true",
        help="the files that the hub has, to try build/convert_chatterbox.py with",
    )
    chosen = arguments.parse_args()
    if chosen.published:
        write_small_published(chosen.folder, chosen.variant, seed=chosen.seed)
    else:
        write_small_t3(chosen.folder, chosen.variant, seed=chosen.seed)
        write_small_s3gen(chosen.folder, meanflow=chosen.variant == "turbo", seed=chosen.seed)
    for path in sorted(chosen.folder.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path}")


if __name__ == "__main__":
    main()
