"""The browser that the gateway's page is tested with."""

from __future__ import annotations

import os
import shutil
import sys

from provision.console import SetupError
from provision.system import BROWSING, loads
from provision.tools import run_quietly

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_INSTALL = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends"]
_UPDATE = ["apt-get", "update", "--quiet"]
_LIMIT_S = 1200.0


def find_browser() -> str | None:
    """The program: PARLEY_BROWSER, or what the machine has."""
    given = os.environ.get("PARLEY_BROWSER")
    return given or next((found for found in map(shutil.which, _NAMES) if found), None)


def provide_browser() -> None:
    """See to it that there is one, and what drives it: as root on Debian they are installed.

    Raises:
        SetupError: something is missing; the message says how to get it.
    """
    missing = _missing()
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SetupError(
            f"The page is tested in Chromium. On Debian: sudo apt-get install {' '.join(missing)} "
            "(PARLEY_BROWSER=/path/to/chromium names another one)"
        )
    print(f"installing {' and '.join(missing)} with apt-get", file=sys.stderr)
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    install = [*_INSTALL, *missing]
    # The lists of packages may be missing, or too old.
    if run_quietly(install, _LIMIT_S).returncode:
        run_quietly(_UPDATE, _LIMIT_S)
        done = run_quietly(install, _LIMIT_S)
        if done.returncode:
            last = "\n".join(f"    {line}" for line in done.stderr.strip().splitlines()[-5:])
            raise SetupError(f"{' '.join(install)} failed:\n{last}")
    if still := _missing():
        raise SetupError(f"{' and '.join(still)} were installed, and cannot be found all the same")


def _missing() -> list[str]:
    """Packages of Debian that are needed."""
    chromium = [] if find_browser() else ["chromium"]
    return [*chromium, *([] if loads(BROWSING.soname) else [BROWSING.package])]
