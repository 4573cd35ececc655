"""Make the files that models load: of published checkpoints, of other exports, or of random numbers.

    .venv-export/bin/python build/export.py checkpoint parakeet-tdt-0.6b-v2
    .venv/bin/python build/export.py torch models/nemotron-speech-streaming-en-0.6b

Without arguments it lists what there is; `build/export.py WHAT --help` explains the options. What is made of
another network is compared with it, and is not written if the two differ by more than is allowed.

Exit status: 0 all was written, 1 something was not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import checkpoints
from comparison import ExportError, note, read_recordings
from parley.errors import ParleyError

# What computes is imported when it is needed: NeMo and torch take seconds, and no environment has everything.
Parser = argparse.ArgumentParser
Options = argparse.Namespace


def _add_checkpoint(parser: Parser) -> None:
    """NeMo and Chatterbox checkpoints of build/checkpoints.toml, which explains the entries.

    A NeMo transducer becomes models/NAME and a folder for each further precision, a Chatterbox checkpoint
    models/NAME with the voice that came with it. manifest.json in each folder says what it was made of, by
    which versions and how near it is, and has the files' checksums. NeMo's checkpoints of 0.6 billion
    parameters take 16 GB of memory, Chatterbox 8 GB.
    """
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries; none: list them")
    parser.add_argument(
        "--from", type=Path, dest="source", metavar="PATH", help="the .nemo file, or the folder"
    )
    parser.add_argument("--manifest", type=Path, default=checkpoints.MANIFEST, metavar="FILE.toml")
    parser.add_argument(
        "--into", type=Path, default=checkpoints.ROOT / "models", metavar="DIR", help="all weights"
    )
    parser.add_argument("--clips", type=Path, default=checkpoints.ROOT / "tests/data/asr_eval", metavar="DIR")
    parser.add_argument("--count", type=int, default=12, help="recordings to compare (default: %(default)s)")


def _run_checkpoint(options: Options) -> None:
    known = checkpoints.load(options.manifest)
    if unknown := [name for name in options.names if name not in known]:
        options.wrong(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    if options.source and len(options.names) != 1:
        options.wrong("--from is for a single NAME")
    for entry in known.values() if not options.names else ():
        print(f"{entry.name:36} {entry.about}")
    chosen = [known[name] for name in options.names]
    sources = [_find(entry, options.source, options.into) for entry in chosen]
    for entry, source in zip(chosen, sources, strict=True):
        if isinstance(entry, checkpoints.NemoEntry):
            from nemo_export.export import export

            export(entry, source, options.into, read_recordings(options.clips, options.count))
        else:
            from chatterbox_export.conversion import convert

            convert(entry, source, options.into)


def _find(entry: checkpoints.Entry, named: Path | None, models: Path) -> Path:
    """What is published of an entry."""
    if named is None and not entry.source:
        raise ExportError(f"the entry {entry.name} has no source: name its checkpoint with --from PATH")
    path = named or models / entry.source / entry.file
    if not path.exists():
        remedy = f": get it with `make fetch MODEL={entry.source}`" if named is None else ""
        raise ExportError(f"{path} is missing{remedy}")
    return path


def _add_torch(parser: Parser) -> None:
    """A recogniser's ONNX export for `engine` = `torch`, which is half as large."""
    parser.add_argument("export", type=Path, metavar="FOLDER", help="in single precision")
    parser.add_argument(
        "--precision", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="of the encoder"
    )
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="default: the export's name with -torch")


def _run_torch(options: Options) -> None:
    import torch_export

    into = options.into or options.export.with_name(f"{options.export.name}-torch")
    torch_export.export(options.export, into, options.precision)


def _add_qwen(parser: Parser) -> None:
    """A Qwen2 chat model in GGUF: its matrices as int8, and of its vocabulary what English needs.

    Every text can still be read and written. TARGET appears when it is complete, with a note of what it was
    made of in .source.json; if that is still true, nothing is done.
    """
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a GGUF file, or a folder with one")
    parser.add_argument("target", type=Path, metavar="TARGET", help="such as models/qwen2.5-coder-0.5b-w8a8")
    parser.add_argument(
        "--vocabulary", choices=("english", "whole"), default="english", help="which tokens are kept"
    )
    parser.add_argument("--adapter", type=Path, help="folder of a LoRA that is merged into the matrices")


def _run_qwen(options: Options) -> None:
    from qwen_gguf.conversion import convert

    convert(options.source, options.target, english=options.vocabulary == "english", adapter=options.adapter)


def _add_small_chatterbox(parser: Parser) -> None:
    """A small random Chatterbox with the published key names, for tests and trials; it speaks noise."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("--variant", choices=("original", "multilingual", "turbo"), default="original")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--published", action="store_true", help="as it is published, to export it")


def _run_small_chatterbox(options: Options) -> None:
    from chatterbox_export.small_published import write_small, write_small_published

    write = write_small_published if options.published else write_small
    note(f"written into {write(options.folder, options.variant, seed=options.seed)}")


def _add_small_encoder(parser: Parser) -> None:
    """A small sentence encoder of random numbers, such as models/tiny-embeddings; words alone count."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path, nargs="+", metavar="TEXT", help="a file with words that it has")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")


def _run_small_encoder(options: Options) -> None:
    import small_encoder

    small_encoder.write(options.folder, options.texts, options.seed)


def _add_real_size(parser: Parser) -> None:
    """Models of the gpu profile's sizes without a download, made of the tiny ones; 15 GB."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, help="at most so many of each network; default: as published")


def _run_real_size(options: Options) -> None:
    from widened.real_size import write

    write(options.folder, options.layers)


class Exporter(NamedTuple):
    """One thing that can be made."""

    add_options: Callable[[Parser], None]
    """Its docstring is the help."""
    run: Callable[[Options], None]
    environment: str
    """Which has the packages."""


EXPORTERS = {
    "checkpoint": Exporter(_add_checkpoint, _run_checkpoint, ".venv-export"),
    "torch": Exporter(_add_torch, _run_torch, ".venv"),
    "qwen": Exporter(_add_qwen, _run_qwen, ".venv"),
    "small-chatterbox": Exporter(_add_small_chatterbox, _run_small_chatterbox, ".venv"),
    "small-encoder": Exporter(_add_small_encoder, _run_small_encoder, ".venv"),
    "real-size": Exporter(_add_real_size, _run_real_size, ".venv"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """See above."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    kinds = parser.add_subparsers(dest="what", metavar="WHAT")
    for name, exporter in EXPORTERS.items():
        about = (exporter.add_options.__doc__ or "").partition("\n")[0]
        text = f"{exporter.add_options.__doc__}\nNeeds the packages of {exporter.environment}."
        own = kinds.add_parser(name, help=f"{about} ({exporter.environment})", description=text)
        exporter.add_options(own)
        own.set_defaults(wrong=own.error)
    options = parser.parse_args(argv)
    if options.what is None:
        parser.print_help()
        return 0
    exporter = EXPORTERS[options.what]
    try:
        exporter.run(options)
    except ModuleNotFoundError as error:
        setup = f"make setup{exporter.environment.removeprefix('.venv')}"
        print(f"error: {error}; it is in {exporter.environment}, which `{setup}` makes", file=sys.stderr)
    except (ExportError, ParleyError, OSError) as error:
        print("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
