"""The checkpoints of the manifest, and unpacking a .nemo file, which may come from anywhere.

NeMo's own way needs a ``tarfile`` with filters, which the Python 3.11 of Debian 12 lacks.
"""

from __future__ import annotations

import shutil
import tarfile
import tomllib
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "build/checkpoints.toml"
Kind = Literal["tdt", "rnnt", "rnnt-streaming"]
Precision = Literal["fp32", "int8", "fp16", "bf16"]
NEEDED = ("model_config.yaml", "model_weights.ckpt")
MAX_BYTES = 64 << 30
"""Largest checkpoint, unpacked."""
MAX_MEMBERS = 10_000


class ExportError(Exception):
    """The export cannot go on; the message says what to do."""


@dataclass(frozen=True)
class Limits:
    """How far an export may be from NeMo itself."""

    encoder: float
    """Relative difference of encoder outputs: root of the mean squares of the differences over that
    of NeMo's outputs."""
    tokens: float
    """Share of NeMo's tokens that are replaced, removed or added."""


@dataclass(frozen=True)
class Entry:
    """A checkpoint to export."""

    name: str
    kind: Kind
    source: str
    file: str
    look_aheads: tuple[int, ...]
    """Of a streaming model, in encoder frames."""
    default_look_ahead: int
    limits: dict[Precision, Limits]
    """By the precisions to make; fp32 comes first."""
    languages: tuple[str, ...] = ()
    """What a model without prompts understands; empty: it is not said."""

    @property
    def streaming(self) -> bool:
        """Whether the encoder takes its audio in chunks."""
        return self.kind == "rnnt-streaming"

    def folder(self, precision: Precision) -> str:
        """Name of the folder of one precision."""
        return self.name if precision == "fp32" else f"{self.name}-{precision}"


def load(manifest: Path = MANIFEST) -> dict[str, Entry]:
    """All checkpoints by name.

    Raises:
        ExportError: the manifest cannot be understood.
    """
    tables = tomllib.loads(manifest.read_text(encoding="utf-8")).get("checkpoints", {})
    try:
        return {name: _entry(name, table) for name, table in tables.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{manifest} cannot be used: {error!r}") from error


def _entry(name: str, table: dict[str, Any]) -> Entry:
    if table["kind"] not in get_args(Kind):
        raise ValueError(f"{name}: kind {table['kind']!r} is none of {', '.join(get_args(Kind))}")
    wanted: list[Precision] = table["precisions"]
    if unknown := set(wanted) - set(get_args(Precision)):
        raise ValueError(f"{name}: no precision {', '.join(unknown)}")
    look_aheads = tuple(table.get("look_aheads", ()))
    if (table["kind"] == "rnnt-streaming") != bool(look_aheads):
        raise ValueError(f"{name}: look_aheads are for streaming models, and those need them")
    order = sorted({"fp32", *wanted}, key=get_args(Precision).index)
    return Entry(
        name,
        table["kind"],
        table.get("source", ""),
        table.get("file", ""),
        look_aheads,
        table.get("default_look_ahead", look_aheads[0] if look_aheads else 0),
        {precision: Limits(**table["accuracy"][precision]) for precision in order},
        tuple(table.get("languages", ())),
    )


def unpack(nemo: Path, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
    """Write the files of a .nemo archive into an empty folder, and nothing anywhere else.

    Args:
        nemo: a tar archive, perhaps compressed.
        folder: where to.
        max_bytes: size of all files together.

    Raises:
        ExportError: it is no such archive, is too large, or has more than files and folders in it.
    """
    try:
        with tarfile.open(nemo) as archive:
            _extract(archive, folder, min(max_bytes, shutil.disk_usage(folder).free))
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise ExportError(f"{nemo} is not a .nemo file: it is no tar archive, or a part of one") from error
    except (_UnsuitableError, FileExistsError, NotADirectoryError) as error:
        raise ExportError(f"{nemo} is not unpacked: {error}") from error
    if missing := [name for name in NEEDED if not (folder / name).is_file()]:
        raise ExportError(f"{nemo} is not a .nemo file: there is no {' and no '.join(missing)} in it")


class _UnsuitableError(Exception):
    """Something in the archive cannot be unpacked."""


def _extract(archive: tarfile.TarFile, folder: Path, room: int) -> None:
    for number, member in enumerate(archive):
        path = PurePosixPath(member.name)
        room -= member.size
        if path.is_absolute() or ".." in path.parts:
            raise _UnsuitableError(f"{member.name!r} in it would lie elsewhere")
        if not (member.isreg() or member.isdir()):
            raise _UnsuitableError(f"{member.name!r} in it is neither a file nor a folder")
        if room < 0 or number >= MAX_MEMBERS:
            raise _UnsuitableError("what is in it is more than there is room for")
        target = folder / path
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        assert content is not None  # it is a file
        with content, target.open("xb") as output:
            shutil.copyfileobj(content, output, 1 << 20)
