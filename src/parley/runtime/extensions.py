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
        if _is_installed(reference.partition(":")[0].partition(".")[0])
    }


@cache
def _read_table() -> dict[str, dict[str, str]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


@cache
def _is_installed(package: str) -> bool:
    return find_spec(package) is not None
