"""The checkpoints of ``build/checkpoints.toml`` that can be exported, and the note in each export."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from comparison import ExportError
from parley.tts.voice_messages import Variant

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = ROOT / "build/checkpoints.toml"
NOTE = "manifest.json"
Precision: TypeAlias = Literal["fp32", "int8", "fp16", "bf16"]


class NemoLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far an export may be from NeMo itself."""

    encoder: float
    """Relative difference of encoder outputs."""
    tokens: float
    """Share of NeMo's tokens that are replaced, removed or added."""


class NemoEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A NeMo transducer, of the table ``checkpoints``; the manifest explains the fields."""

    name: str
    kind: Literal["tdt", "rnnt", "rnnt-streaming"]
    precisions: tuple[Precision, ...]
    accuracy: dict[Precision, NemoLimits]
    source: str = ""
    file: str = ""
    look_aheads: tuple[int, ...] = ()
    default_look_ahead: int | None = None
    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Compare fields with each other."""
        if self.streaming != bool(self.look_aheads):
            raise ValueError("look_aheads are for streaming models, and those need them")
        if missing := set(self.made) - set(self.accuracy):
            raise ValueError(f"accuracy is without {', '.join(sorted(missing))}")

    @property
    def about(self) -> str:
        """For a list."""
        return f"{self.kind:14} {', '.join(self.made)}"

    @property
    def streaming(self) -> bool:
        """Whether the encoder takes its audio in chunks."""
        return self.kind == "rnnt-streaming"

    @property
    def made(self) -> list[Precision]:
        """The precisions to make; fp32 comes first."""
        return sorted({"fp32", *self.precisions}, key=get_args(Precision).index)

    def folder(self, precision: Precision) -> str:
        """Name of the folder of one precision."""
        return self.name if precision == "fp32" else f"{self.name}-{precision}"


class ChatterboxLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far what is served may be from chatterbox-tts itself: largest differences."""

    t3: float
    """Of T3's logits, in units of their standard deviation."""
    mel: float
    """Of the flow's log-mel spectrogram."""
    pitch: float
    """Of the vocoder's pitch, in hertz."""
    audio: float
    """Of the vocoder's samples, full scale being 1."""


class ChatterboxEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A Chatterbox checkpoint, of the table ``chatterbox``; the manifest explains the fields."""

    name: str
    variant: Variant
    accuracy: ChatterboxLimits
    source: str = ""
    file: Literal[""] = ""
    """It is the whole folder."""

    @property
    def about(self) -> str:
        """For a list."""
        return f"Chatterbox {self.variant}"


Entry: TypeAlias = NemoEntry | ChatterboxEntry


def load(manifest: Path = MANIFEST) -> dict[str, Entry]:
    """All entries by name.

    Raises:
        ExportError: the manifest cannot be understood.
    """
    kinds: dict[str, type[Entry]] = {
        "checkpoints": NemoEntry,
        "chatterbox": ChatterboxEntry,
    }
    try:
        tables = tomllib.loads(manifest.read_text(encoding="utf-8"))
        return {
            name: msgspec.convert({"name": name, **fields}, kind)
            for table, kind in kinds.items()
            for name, fields in tables.get(table, {}).items()
        }
    except (OSError, ValueError) as error:
        raise ExportError(f"{manifest} cannot be used: {error}") from error


def describe(folder: Path, facts: dict[str, Any], packages: Sequence[str]) -> None:
    """Write ``manifest.json``: the facts, the versions of packages, and all files with their checksums."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != NOTE]
    note = facts | {
        "versions": {name: version(name) for name in packages} | facts.get("versions", {}),
        "files": [file_entry(path, folder) for path in files],
    }
    (folder / NOTE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")


def file_entry(path: Path, folder: Path) -> dict[str, Any]:
    """Name in the folder, size and checksum of a file."""
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return {"name": str(path.relative_to(folder)), "size": path.stat().st_size, "sha256": digest}
