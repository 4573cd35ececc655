"""The machine: its libraries and Python interpreters, and the output of the set-up.

Triton's stub embeds Python: it loads ``libpython3.X.so.1.0`` of the very interpreter whose
packages the models import. Debian's ``python3`` has that library in a package of its own; the
builds that uv downloads carry it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

MINIMUM_GLIBC = (2, 35)
"""The embedded Triton's wheel is built for it (Debian 12, Ubuntu 22.04)."""
SUPPORTED = ((3, 11), (3, 12))
MANAGED = "3.11"
"""The version that uv downloads when the machine has no suitable interpreter."""
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


class SetupError(Exception):
    """The set-up failed; the message names the remedy."""


class Progress:
    """Numbered steps with the elapsed time."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._step = 0
        self._begin = time.monotonic()

    def step(self, text: str) -> None:
        """Announce the next step."""
        self._step += 1
        print(f"[{self._step}/{self._total}] {text}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Print a line about the present step."""
        print(f"      {text}", file=sys.stderr, flush=True)

    def done(self, text: str) -> None:
        """Print the last line, with the time."""
        print(f"{text} ({time.monotonic() - self._begin:.0f} s)", file=sys.stderr, flush=True)


class Library(NamedTuple):
    """A shared library that no wheel carries."""

    soname: str
    package: str
    """Debian's and Ubuntu's package."""
    needed_by: str


SERVING = [Library("libnuma.so.1", "libnuma1", "vLLM")]
BROWSING = Library("libatomic.so.1", "libatomic1", "playwright, which drives the browser of the tests")
TALKING = [Library("libportaudio.so.2", "libportaudio2", "the microphone (make talk)")]


def check_system(libraries: list[Library]) -> None:
    """Check the platform, the shared libraries and the Python that runs this.

    Raises:
        SetupError: something is missing; one command that installs all of it is named.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SetupError(
            f"The embedded Triton exists for Linux on x86-64 only; this is {sys.platform} on "
            f"{platform.machine()}."
        )
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_GLIBC:
        raise SetupError(
            f"The embedded Triton needs glibc {'.'.join(map(str, MINIMUM_GLIBC))} or later (Debian 12, "
            f"Ubuntu 22.04); this machine has {name or 'another C library'} {version}."
        )
    missing = [library for library in libraries if not loads(library.soname)]
    reasons = [f"{library.soname} is missing ({library.needed_by} loads it)" for library in missing]
    packages = [library.package for library in missing]
    if importlib.util.find_spec("ensurepip") is None:
        reasons.append(f"{sys.executable} cannot make virtual environments")
        packages.append("python3-venv")
    if packages:
        raise SetupError(
            f"{'; '.join(reasons)}. On Debian and Ubuntu: sudo apt-get install {' '.join(packages)}"
        )


def loads(soname: str) -> bool:
    """Whether the machine has a shared library."""
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True


class Interpreter(NamedTuple):
    """A probed interpreter."""

    path: str
    version: tuple[int, ...]
    has_library: bool
    """Whether its shared library is installed."""


def probe(path: str) -> Interpreter | None:
    """Run an interpreter to examine it; None if it is not a CPython that starts."""
    try:
        answer = subprocess.run([path, "-I", "-c", _PROBE], capture_output=True, check=True, timeout=30)
        found: dict[str, Any] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if not found["cpython"]:
        return None
    return Interpreter(found["base"] or path, tuple(found["version"]), found["library"])


def candidates() -> list[str]:
    """Paths of interpreters: the system's own first, then those on PATH."""
    names = [f"python{major}.{minor}" for major, minor in SUPPORTED] + ["python3"]
    paths = [f"{folder}/{name}" for folder in ("/usr/bin", "/usr/local/bin") for name in names]
    paths += [found for found in map(shutil.which, names) if found] + [sys.executable]
    unique: dict[str, str] = {}
    for path in paths:
        if Path(path).exists():
            unique.setdefault(os.path.realpath(path), path)
    return list(unique.values())


def choose(wanted: str, paths: list[str]) -> tuple[str, str]:
    """The argument of ``uv venv --python``, and a remark about it.

    Args:
        wanted: PARLEY_PYTHON: a path, ``managed``, or empty for the best of ``paths``.
        paths: interpreters to probe.

    Raises:
        SetupError: ``wanted`` is not usable.
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
