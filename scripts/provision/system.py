"""The machine: its libraries, its Python interpreters, and running its programs.

Triton's stub embeds Python: it loads ``libpython3.X.so.1.0`` of the very interpreter whose
packages the models import. Debian's ``python3`` has that library in a package of its own; the
builds that uv downloads carry it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

MINIMUM_GLIBC = (2, 35)
"""The embedded Triton's wheel is built for it (Debian 12, Ubuntu 22.04)."""
SUPPORTED = ("3.11", "3.12")
MANAGED = "3.11"
"""The version that uv downloads when the machine has no suitable interpreter."""
_PROBE = """
import os, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
folders = (sysconfig.get_config_var("LIBDIR") or "", os.path.join(sys.base_prefix, "lib"))
found = [os.path.isfile(os.path.join(folder, "libpython%s.so.1.0" % version)) for folder in folders]
print(getattr(sys, "_base_executable", "") or sys.executable)
print(version if sys.implementation.name == "cpython" else "another implementation")
print("library" if any(found) else "")
"""
_QUICK_S = 30.0


class SetupError(Exception):
    """The set-up failed; the message names the remedy."""


Libraries = Mapping[str, str]
"""Shared libraries that no wheel carries, with Debian's and Ubuntu's package of each."""
SERVING: Libraries = {"libnuma.so.1": "libnuma1"}
"""vLLM loads it."""
TALKING: Libraries = {**SERVING, "libportaudio.so.2": "libportaudio2"}
"""With the microphone."""


def say(text: str) -> None:
    """Report what is being done."""
    print(text, file=sys.stderr, flush=True)


def run_quietly(
    command: list[str], limit_s: float, more: Mapping[str, str] | None = None, *, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program and capture its output.

    ``more``: additional environment variables; ``folder``: where it runs, if not here.

    Raises:
        SetupError: it did not end within ``limit_s`` seconds.
    """
    try:
        environment = {**os.environ, **(more or {})}
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=limit_s,
            env=environment,
            cwd=folder,
        )
    except subprocess.TimeoutExpired as error:
        name = " ".join(command[:4])
        raise SetupError(f"{name} did not end within {limit_s:.0f} s. Is the network reachable?") from error


def last_lines(finished: subprocess.CompletedProcess[str]) -> str:
    """The end of a program's output, for the message of an error."""
    lines = (finished.stdout + finished.stderr).strip().splitlines()
    return "\n".join(f"    {line}" for line in lines[-5:])


def check_system(libraries: Libraries) -> None:
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
    missing = {soname: package for soname, package in libraries.items() if not loads(soname)}
    reasons = [f"{soname} is missing" for soname in missing]
    packages = [*missing.values()]
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


def probe(path: str) -> tuple[str, str, bool] | None:
    """The interpreter that environments are based on: path, version, whether its shared library is installed.

    None: it is not a supported one, or does not start.
    """
    try:
        base, version, library = run_quietly([path, "-I", "-c", _PROBE], _QUICK_S).stdout.split("\n")[:3]
    except (OSError, SetupError, ValueError):
        return None
    return (base, version, bool(library)) if version in SUPPORTED else None


def candidates() -> list[str]:
    """Paths of interpreters: the system's own first, then those on PATH."""
    names = [*(f"python{version}" for version in SUPPORTED), "python3"]
    system = os.pathsep.join(("/usr/bin", "/usr/local/bin"))
    found = [shutil.which(name, path=path) for path in (system, None) for name in names]
    return list({os.path.realpath(path): path for path in (*found, sys.executable) if path}.values())


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
    found = [one for one in map(probe, [wanted] if wanted else paths) if one]
    for path, version, has_library in found:
        if has_library:
            return path, f"Python {version} ({path})"
    reason = "this machine has no Python 3.11 or 3.12."
    if found:
        path, version, _ = found[0]
        reason = (
            f"{path} has no libpython{version}.so.1.0 (to use it: sudo apt-get install libpython{version})."
        )
    if wanted:
        what = reason if found else f"PARLEY_PYTHON={wanted} is not a working CPython 3.11 or 3.12."
        raise SetupError(f"{what} Or unset PARLEY_PYTHON.")
    return MANAGED, f"Python {MANAGED}, downloaded: {reason}"
