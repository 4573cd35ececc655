"""Choosing the Python of an environment.

Triton's stub embeds Python: it loads ``libpython3.X.so.1.0`` of the very interpreter whose
packages the models import. Debian's ``python3`` has that library in a package of its own; the
builds that uv downloads carry it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from provision.console import SetupError

SUPPORTED = ((3, 11), (3, 12))
MANAGED = "3.11"
"""What uv is asked for when the machine has no suitable interpreter."""

_PROBE = """
import json, os, sys, sysconfig
name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
folders = [sysconfig.get_config_var("LIBDIR") or "", os.path.join(sys.base_prefix, "lib")]
print(json.dumps({
    "version": sys.version_info[:3],
    "cpython": sys.implementation.name == "cpython",
    "virtual": sys.prefix != sys.base_prefix,
    "base": getattr(sys, "_base_executable", sys.executable),
    "library": any(os.path.isfile(os.path.join(folder, name)) for folder in folders),
}))
"""


class Interpreter(NamedTuple):
    """An interpreter that was asked about itself."""

    path: str
    version: tuple[int, ...]
    has_library: bool
    """Whether its shared library is installed."""


def probe(path: str) -> Interpreter | None:
    """Ask an interpreter about itself; None if it is not a CPython that starts."""
    try:
        answer = subprocess.run([path, "-I", "-c", _PROBE], capture_output=True, check=True, timeout=30)
        found: dict[str, Any] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if not found["cpython"]:
        return None
    return Interpreter(found["base"] or path, tuple(found["version"]), found["library"])


def candidates() -> list[str]:
    """Interpreters worth asking: the system's own first, then what PATH offers."""
    names = [f"python{major}.{minor}" for major, minor in SUPPORTED] + ["python3"]
    paths = [f"{folder}/{name}" for folder in ("/usr/bin", "/usr/local/bin") for name in names]
    paths += [found for found in map(shutil.which, names) if found] + [sys.executable]
    unique: dict[str, str] = {}
    for path in paths:
        if Path(path).exists():
            unique.setdefault(os.path.realpath(path), path)
    return list(unique.values())


def choose(wanted: str, paths: list[str]) -> tuple[str, str]:
    """Decide which Python the environment gets.

    Args:
        wanted: PARLEY_PYTHON: a path, ``managed``, or empty for the best of ``paths``.
        paths: interpreters to ask.

    Returns:
        What ``uv venv --python`` takes, and a remark for the person at the terminal.

    Raises:
        SetupError: ``wanted`` cannot be used.
    """
    if wanted == "managed":
        return MANAGED, f"Python {MANAGED}, downloaded (PARLEY_PYTHON=managed)"
    if wanted:
        found = probe(shutil.which(wanted) or wanted)
        if found is None or found.version[:2] not in SUPPORTED:
            raise SetupError(f"PARLEY_PYTHON={wanted} is not a working CPython 3.11 or 3.12.")
        if not found.has_library:
            raise SetupError(_without_library(found) + " Or unset PARLEY_PYTHON.")
        return found.path, _describe(found)
    suitable = [found for found in map(probe, paths) if found and found.version[:2] in SUPPORTED]
    for found in suitable:
        if found.has_library:
            return found.path, _describe(found)
    reason = _without_library(suitable[0]) if suitable else "this machine has no Python 3.11 or 3.12."
    return MANAGED, f"Python {MANAGED}, downloaded: {reason}"


def _describe(found: Interpreter) -> str:
    return f"Python {'.'.join(map(str, found.version))} ({found.path})"


def _without_library(found: Interpreter) -> str:
    version = ".".join(map(str, found.version[:2]))
    return (
        f"{found.path} has no libpython{version}.so.1.0 (to use it: sudo apt-get install libpython{version})."
    )
