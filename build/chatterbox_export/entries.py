"""The Chatterbox checkpoints of ``build/checkpoints.toml``, and which files each variant has."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from parley.tts.voice_messages import Variant

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "build/checkpoints.toml"
CONDITIONALS = "conds.pt"
"""The voice that a checkpoint is published with."""


class ConversionError(Exception):
    """The conversion cannot go on; the message says what is wrong."""


class Files(NamedTuple):
    """The files of a variant. Of a pair, the first is published and the second is what the models load."""

    t3: tuple[str, str]
    s3gen: tuple[str, str]
    voice_encoder: tuple[str, str]
    tokenizer: tuple[str, ...]
    """Taken as they are."""
    tokenizer_extras: tuple[str, ...] = ()
    """The same, where they are there."""


# As ``from_local`` of chatterbox-tts 0.1.7 reads them (tts.py, mtl_tts.py, tts_turbo.py).
FILES: dict[Variant, Files] = {
    "original": Files(
        t3=("t3_cfg.safetensors", "t3_cfg.safetensors"),
        s3gen=("s3gen.safetensors", "s3gen.safetensors"),
        voice_encoder=("ve.safetensors", "ve.safetensors"),
        tokenizer=("tokenizer.json",),
    ),
    "multilingual": Files(
        t3=("t3_mtl23ls_v2.safetensors", "t3_mtl23ls_v2.safetensors"),
        s3gen=("s3gen.pt", "s3gen.safetensors"),
        voice_encoder=("ve.pt", "ve.safetensors"),
        tokenizer=("grapheme_mtl_merged_expanded_v1.json",),
    ),
    "turbo": Files(
        t3=("t3_turbo_v1.safetensors", "t3_turbo_v1.safetensors"),
        s3gen=("s3gen_meanflow.safetensors", "s3gen_meanflow.safetensors"),
        voice_encoder=("ve.safetensors", "ve.safetensors"),
        tokenizer=("vocab.json", "merges.txt", "tokenizer_config.json", "added_tokens.json"),
        tokenizer_extras=("special_tokens_map.json",),
    ),
}


@dataclass(frozen=True)
class Limits:
    """How far what is served may be from chatterbox-tts itself: largest differences."""

    t3: float
    """Of T3's logits, in units of their standard deviation."""
    mel: float
    """Of the flow's log-mel spectrogram."""
    pitch: float
    """Of the vocoder's pitch, in hertz."""
    audio: float
    """Of the vocoder's samples, full scale being 1."""


@dataclass(frozen=True)
class Entry:
    """A checkpoint to convert."""

    name: str
    variant: Variant
    source: str
    """Folder of the published files below ``models``."""
    limits: Limits

    @property
    def files(self) -> Files:
        """Its files."""
        return FILES[self.variant]


def load(manifest: Path = MANIFEST) -> dict[str, Entry]:
    """All entries by name.

    Raises:
        ConversionError: the manifest cannot be understood.
    """
    try:
        tables = tomllib.loads(manifest.read_text(encoding="utf-8")).get("chatterbox", {})
        return {name: _entry(name, table) for name, table in tables.items()}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConversionError(f"{manifest} cannot be used: {error!r}") from error


def _entry(name: str, table: dict[str, Any]) -> Entry:
    if table["variant"] not in get_args(Variant):
        raise ValueError(f"{name}: variant {table['variant']!r} is none of {', '.join(get_args(Variant))}")
    return Entry(name, table["variant"], table.get("source", ""), Limits(**table["accuracy"]))
