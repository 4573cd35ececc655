"""Export NeMo transducers to the files that the models load.

    python build/export_nemo.py parakeet-tdt-0.6b-v2

takes the .nemo file that ``scripts/fetch_models nemo/parakeet-tdt-0.6b-v2`` has brought (or
``--nemo FILE``), and writes models/parakeet-tdt-0.6b-v2 and a folder for each further precision of
``build/checkpoints.toml``. Every folder is compared with NeMo itself on recordings, run by the
code that serves, and is written only if it is as near as the manifest demands. Half precision
is compared with products rounded to it but computed in single precision: CPUs have no such products.

A graph is in ``encoder-model.onnx``, or ``encoder-r0.onnx`` and so on for the look-aheads of a streaming
model, which share ``encoder.weights``. ``manifest.json`` says what was made, from what, by which
versions and how near it is, and has the files' checksums.

Needs the environment .venv-export (``make setup-export``), and for a model of 0.6 billion parameters
16 GB of memory.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from nemo.collections.asr.models import ASRModel
from nemo.utils import logging as nemo_logging
from numpy.typing import NDArray

from nemo_export import accuracy, entries, layout
from nemo_export.accuracy import Accuracy, Heard
from nemo_export.entries import ROOT, Entry, ExportError, Precision


@dataclass(frozen=True)
class Reference:
    """Recordings, and what NeMo makes of them."""

    clips: Sequence[NDArray]
    heard: Sequence[Heard]


def export(entry: Entry, nemo: Path, models: Path, clips: Path, count: int) -> None:
    """Make all precisions of an entry.

    Raises:
        ExportError: the checkpoint is not what the entry says, or an export is too far from it. What
            was made before stays.
    """
    began = time.monotonic()
    if not nemo.is_file():
        raise ExportError(f"{nemo} is missing: get it with `scripts/fetch_models {entry.source}`")
    source = layout.file_entry(nemo)
    model = ASRModel.restore_from(str(nemo), map_location="cpu").eval()
    recordings = accuracy.read_clips(clips, count)
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models, prefix=f".{entry.name}.") as temporary:
        work = Path(temporary)
        fp32 = _new(work / "fp32")
        layout.export(model, entry, fp32)
        reference = Reference(recordings, accuracy.by_nemo(model, entry, recordings))
        del model
        for precision in entry.limits:
            folder = fp32
            if precision != "fp32":
                folder = _new(work / precision)
                layout.convert(entry, fp32, folder, precision)
            measured = _measure(entry, precision, fp32, folder, reference)
            layout.describe(entry, precision, folder, source, asdict(measured))
            _note(
                f"{_name(entry, precision)}: encoder {measured.encoder:.1e}, tokens {measured.tokens:.2%} "
                f"of {measured.reference_tokens} differ"
            )
        for precision in entry.limits:
            _put(work / precision, models / _name(entry, precision))
    _note(f"{entry.name} is in {models} ({time.monotonic() - began:.0f} s)")


def _measure(entry: Entry, precision: Precision, fp32: Path, folder: Path, reference: Reference) -> Accuracy:
    runnable = folder
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        if precision in ("fp16", "bf16"):
            runnable = Path(temporary)
            layout.convert(entry, fp32, runnable, precision, emulate=True)
        measured = accuracy.compare(reference.heard, accuracy.by_export(runnable, entry, reference.clips))
    measured.check(entry.limits[precision], _name(entry, precision))
    return measured


def _name(entry: Entry, precision: Precision) -> str:
    return entry.name if precision == "fp32" else f"{entry.name}-{precision}"


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _put(made: Path, folder: Path) -> None:
    """Move an export into place; a folder that is there loses the files of the same names only."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(made.iterdir()):
        shutil.move(path, folder / path.name)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 all was exported, 1 something failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="MODEL", help="entries of the manifest; none: list them")
    parser.add_argument("--nemo", type=Path, metavar="FILE", help="the checkpoint, for a single MODEL")
    parser.add_argument("--manifest", type=Path, default=entries.MANIFEST, metavar="FILE.toml")
    parser.add_argument(
        "--into", type=Path, default=ROOT / "models", metavar="DIR", help="folder of all weights"
    )
    parser.add_argument("--clips", type=Path, default=ROOT / "tests/data/asr_eval", metavar="DIR")
    parser.add_argument("--count", type=int, default=12, help="recordings to compare (default: %(default)s)")
    args = parser.parse_args(argv)
    nemo_logging.setLevel(logging.ERROR)
    # ONNX Runtime's quantiser recommends a step that the exporter has already done.
    logging.getLogger().setLevel(logging.ERROR)
    torch.manual_seed(0)
    try:
        known = entries.load(args.manifest)
        if unknown := [name for name in args.names if name not in known]:
            parser.error(f"no {', '.join(unknown)}; there are {', '.join(known)}")
        if args.nemo and len(args.names) != 1:
            parser.error("--nemo is for a single MODEL")
        if not args.names:
            print(
                "\n".join(
                    f"{entry.name:36} {entry.kind:15} {', '.join(entry.limits)}" for entry in known.values()
                )
            )
        for name in args.names:
            entry = known[name]
            nemo = args.nemo or args.into / entry.source / entry.file
            export(entry, nemo, args.into, args.clips, args.count)
    except ExportError as error:
        _note(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
