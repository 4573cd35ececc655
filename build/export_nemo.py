"""Export NeMo transducers to the files that the models load.

    python build/export_nemo.py parakeet-tdt-0.6b-v2

takes the .nemo file that ``scripts/fetch_models nemo/parakeet-tdt-0.6b-v2`` has brought (or
``--nemo FILE``), and writes models/parakeet-tdt-0.6b-v2 and a folder for each further precision of
``build/checkpoints.toml``. Every folder is compared with NeMo itself on recordings, run by the
code that serves, and is written only if that one is as near as the manifest demands. Half precision
is compared with products rounded to it but computed in single precision: CPUs have no such products.

A graph is in ``encoder-model.onnx``, or ``encoder-r0.onnx`` and so on for the look-aheads of a streaming
model, which share ``encoder.weights``. ``manifest.json`` says what was made, from what, by which
versions and how near it is, and has the files' checksums.

Needs the environment .venv-export (``make setup-export``), and for a model of 0.6 billion parameters
16 GB of memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_export import archive
from nemo_export.archive import ROOT, Entry, ExportError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 all was exported, 1 something failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="MODEL", help="entries of the manifest; none: list them")
    parser.add_argument("--nemo", type=Path, metavar="FILE", help="the checkpoint, for a single MODEL")
    parser.add_argument("--manifest", type=Path, default=archive.MANIFEST, metavar="FILE.toml")
    parser.add_argument(
        "--into", type=Path, default=ROOT / "models", metavar="DIR", help="folder of all weights"
    )
    parser.add_argument("--clips", type=Path, default=ROOT / "tests/data/asr_eval", metavar="DIR")
    parser.add_argument("--count", type=int, default=12, help="recordings to compare (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        known = archive.load(args.manifest)
        if unknown := [name for name in args.names if name not in known]:
            parser.error(f"no {', '.join(unknown)}; there are {', '.join(known)}")
        if args.nemo and len(args.names) != 1:
            parser.error("--nemo is for a single MODEL")
        if not args.names:
            width = max(map(len, known), default=0)
            for entry in known.values():
                print(f"{entry.name:{width}}  {entry.kind:14}  {', '.join(entry.limits)}")
        chosen = [(known[name], _find(known[name], args.nemo, args.into)) for name in args.names]
        if chosen:
            from nemo_export.export import export  # NeMo takes seconds: not for wrong usage

            for entry, nemo in chosen:
                export(entry, nemo, args.into, args.clips, args.count)
    except ExportError as error:
        print("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return 1
    except OSError as error:  # for example a full disk
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _find(entry: Entry, named: Path | None, models: Path) -> Path:
    """The checkpoint of an entry.

    Raises:
        ExportError: it is not there.
    """
    if named is None and not entry.source:
        raise ExportError(f"the entry {entry.name} has no source: name its checkpoint with --nemo FILE")
    nemo = named or models / entry.source / entry.file
    if not nemo.is_file():
        remedy = f": get it with `make fetch MODEL={entry.source}`" if named is None else ""
        raise ExportError(f"{nemo} is missing{remedy}")
    return nemo


if __name__ == "__main__":
    sys.exit(main())
