"""Programs that tests start and no package index has; as root on Debian they are installed."""

from __future__ import annotations

import os
import shutil
import sys

from provision.console import SetupError
from provision.system import BROWSING, loads
from provision.tools import run_quietly

_BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_INSTALL = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends"]
_UPDATE = ["apt-get", "update", "--quiet"]
_LIMIT_S = 1200.0


def find_browser() -> str | None:
    """The program: PARLEY_BROWSER, or what the machine has."""
    given = os.environ.get("PARLEY_BROWSER")
    return given or next((found for found in map(shutil.which, _BROWSERS) if found), None)


def provide_browser() -> None:
    """Provide the browser that the gateway's page is tested with, and what drives it.

    Raises:
        SetupError: something is missing; the message says how to get it.
    """
    missing = _missing_for_the_page()
    if not missing:
        return
    if not _can_install():
        raise SetupError(
            f"The page is tested in Chromium. On Debian: sudo apt-get install {' '.join(missing)} "
            "(PARLEY_BROWSER=/path/to/chromium names another one)"
        )
    _install(missing)
    if still := _missing_for_the_page():
        raise SetupError(f"{' and '.join(still)} were installed, and cannot be found all the same")


def provide_redis() -> None:
    """Provide the redis-server that shared rate limits are tested with, where this user can install it.

    Elsewhere its tests are skipped. A Debian that has an init system also starts the package's service.

    Raises:
        SetupError: the installation failed.
    """
    if shutil.which("redis-server") or not _can_install():
        return
    _install(["redis-server"])
    if not shutil.which("redis-server"):
        raise SetupError("redis-server was installed, and cannot be found all the same")


def _missing_for_the_page() -> list[str]:
    """Packages of Debian that are needed."""
    chromium = [] if find_browser() else ["chromium"]
    return [*chromium, *([] if loads(BROWSING.soname) else [BROWSING.package])]


def _can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install(packages: list[str]) -> None:
    print(f"installing {' and '.join(packages)} with apt-get", file=sys.stderr)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    command = [*_INSTALL, *packages]
    # The lists of packages may be missing, or too old.
    if run_quietly(command, _LIMIT_S, quiet).returncode:
        run_quietly(_UPDATE, _LIMIT_S, quiet)
        done = run_quietly(command, _LIMIT_S, quiet)
        if done.returncode:
            last = "\n".join(f"    {line}" for line in done.stderr.strip().splitlines()[-5:])
            raise SetupError(f"{' '.join(command)} failed:\n{last}")
