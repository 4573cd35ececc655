"""What the machine must have before any package is installed."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import sys
from typing import NamedTuple

from provision.console import SetupError

MINIMUM_GLIBC = (2, 35)
"""The embedded Triton's wheel is built for it (Debian 12, Ubuntu 22.04)."""


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
        SetupError: this machine cannot run the embedded server, or lacks something; one command
            that installs all of it is named.
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
