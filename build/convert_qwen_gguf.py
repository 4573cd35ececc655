"""Convert a Qwen2 chat model from GGUF to the folder that the model ``qwen3`` loads on a CPU.

    python build/convert_qwen_gguf.py SOURCE TARGET

SOURCE is a GGUF file or a folder with one; TARGET is the folder to make, such as
models/qwen2.5-coder-0.5b-w8a8. Matrices become int8, and of the vocabulary what English needs is kept: every
text can still be read and written. TARGET appears when it is complete, with a note of what it was made of in
.source.json; if that is still true, nothing is done.

Exit status: 0 it is there, 1 it could not be made, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from qwen_gguf.conversion import convert, find, remove_leftovers
from qwen_gguf.source import ConversionError


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and convert."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("target", type=Path, metavar="TARGET")
    parser.add_argument(
        "--vocabulary", choices=("english", "whole"), default="english", help="which tokens are kept"
    )
    parser.add_argument("--adapter", type=Path, help="folder of a LoRA that is merged into the matrices")
    args = parser.parse_args(argv)
    began = time.monotonic()
    target = args.target.resolve()
    try:
        remove_leftovers(target)
        english = args.vocabulary == "english"
        made = convert(
            find(args.source),
            target,
            english=english,
            adapter=args.adapter,
            tell=lambda line: _tell(began, line),
        )
    except (ConversionError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _tell(began, f"{target} is complete" if made else f"{target} is there already")
    return 0


def _tell(began: float, line: str) -> None:
    print(f"[{time.monotonic() - began:4.0f} s] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
