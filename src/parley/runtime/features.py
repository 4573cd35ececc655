"""What a caller gets from each profile, by the models that are loaded: the table ``features.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path

import msgspec

_FILE = Path(__file__).with_name("features.toml")


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    gets: str
    """What a caller gets."""
    models: tuple[str, ...]
    """All models of the profile that this takes."""
    prepare: tuple[str, ...] = ()
    """Commands that make weights which no download brings."""


def read_features(profile: str) -> tuple[Feature, ...]:
    """The features of a profile; empty for one that the table does not have."""
    rows = tomllib.loads(_FILE.read_text(encoding="utf-8")).get(profile, [])
    return msgspec.convert(rows, tuple[Feature, ...])


def describe_missing(profile: str, loaded: Collection[str]) -> list[str]:
    """A line for each feature of the profile that callers do not get, with the models that are not loaded."""
    lines = []
    for feature in read_features(profile):
        if absent := [model for model in feature.models if model not in loaded]:
            remedy = f"; {', then '.join(feature.prepare)}" if feature.prepare else ""
            lines.append(f"callers do not get {feature.gets}: without {', '.join(absent)}{remedy}")
    return lines
