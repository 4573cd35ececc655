"""Convert published Chatterbox checkpoints to the folders that the models load.

    python build/convert_chatterbox.py chatterbox

takes the files that ``scripts/fetch_models resemble/chatterbox`` has brought (or ``--from DIR``), and
writes models/chatterbox: T3, S3Gen, the voice encoder and the text tokenizer as the models ``t3``,
``s3gen`` and ``voice_enrollment`` load them, and the voice that came with them in ``voices``. Names
and shapes of all tensors are compared with those of chatterbox-tts' own modules; no file can run code
when it is read. The code that serves is then compared with chatterbox-tts itself, and nothing is
written unless it is as near as ``build/checkpoints.toml`` demands. ``manifest.json`` says what was
made from what.

Needs the environment .venv-export (``make setup-export``), and for the published checkpoints 8 GB of memory.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from chatterbox_export import entries
from chatterbox_export.conversion import convert
from chatterbox_export.entries import ROOT, ConversionError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 all was converted, 1 something failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="MODEL", help="entries of the manifest; none: list them")
    parser.add_argument(
        "--from", type=Path, dest="source", metavar="DIR", help="the files, for a single MODEL"
    )
    parser.add_argument("--manifest", type=Path, default=entries.MANIFEST, metavar="FILE.toml")
    parser.add_argument(
        "--into", type=Path, default=ROOT / "models", metavar="DIR", help="folder of all weights"
    )
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    try:
        known = entries.load(args.manifest)
        if unknown := [name for name in args.names if name not in known]:
            parser.error(f"no {', '.join(unknown)}; there are {', '.join(known)}")
        if args.source and len(args.names) != 1:
            parser.error("--from is for a single MODEL")
        for entry in known.values() if not args.names else ():
            print(f"{entry.name:36} {entry.variant}")
        for name in args.names:
            _convert(known[name], args.source or args.into / known[name].source, args.into)
    except ConversionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _convert(entry: entries.Entry, source: Path, models: Path) -> None:
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # of what chatterbox-tts, pinned to old versions, calls
        measured = convert(entry, source, models)
    print(
        f"{entry.name}: T3's logits differ by {measured.t3:.1e}, the spectrogram by {measured.mel:.1e}, the "
        f"pitch by {measured.pitch:.1e} Hz, samples by {measured.audio:.1e}",
        file=sys.stderr,
    )
    print(f"{entry.name} is in {models} ({time.monotonic() - began:.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
