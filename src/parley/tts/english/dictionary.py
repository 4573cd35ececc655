"""Words and their sounds, as ``misaki`` publishes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from parley.errors import ModelLoadingError

Entry: TypeAlias = str | Mapping[str, str | None]
"""The sounds of a word, or those of each of its parts of speech; ``DEFAULT`` is always there."""

GOLD, SILVER = "us_gold.json", "us_silver.json"
FILES = (GOLD, SILVER)

# What the dictionaries lack and assistants often say.
_OWN: Mapping[str, Entry] = {
    "résumé": "ɹˈɛzəmˌA",
    "JSON": "ʤˈAsən",
    "SQL": "sˈikwəl",
    "GIF": "ɡˈɪf",
    "GUI": "ɡˈui",
    "LLaMA": "lˈɑmə",
    "PhD": "pˌiˌAʧdˈi",
    "WiFi": "wˈIfˌI",
    "iOS": "ˌIˌOˈɛs",
    "vs": "vˈɜɹsəs",
    "Qwen": "kwˈɛn",
    "Mc": "mək",
    "Kubernetes": "kˌubəɹnˈɛɾiz",
    "Nguyen": "nwˈɪn",
    "Niamh": "nˈiv",
    "Saoirse": "sˈɜɹʃə",
    "Siobhan": "ʃəvˈɔn",
    "bass": {"DEFAULT": "bˈAs", "FISH": "bˈæs"},
    "lead": {"DEFAULT": "lˈid", "METAL": "lˈɛd"},
}


class Dictionary:
    """Looks words up as they are spelled; the first of several tables that has a word counts.

    Args:
        tables: word to sounds, the best first.
    """

    def __init__(self, tables: Sequence[Mapping[str, Entry]]) -> None:
        self._tables = (_OWN, *tables)

    def get(self, word: str) -> Entry | None:
        """What is said for ``word``, in exactly this case; None: it is not there."""
        for table in self._tables:
            entry = table.get(word)
            if entry is not None:
                return entry
        return None

    def is_common(self, word: str) -> bool:
        """Whether it is in the first tables, which have no rare words."""
        return any(word in table for table in self._tables[:2])


def load_dictionary(folder: Path) -> Dictionary:
    """Read both of misaki's dictionaries.

    Raises:
        ModelLoadingError: a file cannot be read.
    """
    return Dictionary([_read(folder / name) for name in FILES])


def _read(path: Path) -> dict[str, Entry]:
    try:
        with path.open(encoding="utf-8") as file:
            table = json.load(file)
    except (OSError, ValueError) as error:
        raise ModelLoadingError(f"the dictionary {path} cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise ModelLoadingError(f"the dictionary {path} is not a table")
    return table
