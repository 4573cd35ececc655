"""What packages beside ``parley`` bring for its models: the table ``extensions.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

_FILE = Path(__file__).with_name("extensions.toml")


class Extension:
    """A function of another package, which is imported when it is called.

    Args:
        reference: ``module:name``.
    """

    def __init__(self, reference: str) -> None:
        self.reference = reference

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return resolve_name(self.reference)(*args, **kwargs)


def find_extensions(kind: str) -> dict[str, Extension]:
    """The functions of one table by their name in it, without those of packages that are not installed.

    Raises:
        KeyError: there is no such table.
    """
    return {
        name: Extension(reference)
        for name, reference in _read_table()[kind].items()
        if _is_installed(_package(reference))
    }


def extension_folders() -> list[Path]:
    """Where the installed packages are that the table names."""
    references = {reference for table in _read_table().values() for reference in table.values()}
    specs = [find_spec(package) for package in sorted(set(map(_package, references)))]
    return [Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ()]


@cache
def _read_table() -> dict[str, dict[str, str]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def _package(reference: str) -> str:
    return reference.partition(":")[0].partition(".")[0]


@cache
def _is_installed(package: str) -> bool:
    return find_spec(package) is not None
