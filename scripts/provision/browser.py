"""The browser that the gateway's page is tested with."""

from __future__ import annotations

import os
import shutil
import sys

from provision.console import SetupError
from provision.tools import run_quietly

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_INSTALL = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "chromium"]
_UPDATE = ["apt-get", "update", "--quiet"]
_LIMIT_S = 1200.0


def find_browser() -> str | None:
    """The program: PARLEY_BROWSER, or what the machine has."""
    given = os.environ.get("PARLEY_BROWSER")
    return given or next((found for found in map(shutil.which, _NAMES) if found), None)


def provide_browser() -> None:
    """See to it that there is one: as root on Debian it is installed.

    Raises:
        SetupError: there is none; the message says how to get it.
    """
    if find_browser():
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SetupError(
            "The page is tested in Chromium, which is not there. On Debian: sudo apt-get install chromium "
            "(PARLEY_BROWSER=/path/to/chromium names another one)"
        )
    print("installing chromium with apt-get", file=sys.stderr)
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    # The lists of packages may be missing, or too old.
    if run_quietly(_INSTALL, _LIMIT_S).returncode:
        run_quietly(_UPDATE, _LIMIT_S)
        done = run_quietly(_INSTALL, _LIMIT_S)
        if done.returncode:
            last = "\n".join(f"    {line}" for line in done.stderr.strip().splitlines()[-5:])
            raise SetupError(f"{' '.join(_INSTALL)} failed:\n{last}")
    if not find_browser():
        raise SetupError("chromium was installed, but there is no program of that name")
