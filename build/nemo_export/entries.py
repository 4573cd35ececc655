"""The checkpoints of ``build/checkpoints.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "build/checkpoints.toml"
Kind = Literal["tdt", "rnnt", "rnnt-streaming"]
Precision = Literal["fp32", "int8", "fp16", "bf16"]


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
    )
