"""The command ``scripts/setup``."""

from __future__ import annotations

import argparse
import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision import environments as made
from provision.environments import IN_IMAGES, SERVE, Environment, is_ready, make, with_project
from provision.locks import write_locks
from provision.programs import PROGRAMS
from provision.system import SetupError, say

ROOT = Path(__file__).resolve().parents[2]
_ENVIRONMENTS = {
    "talk": (made.TALK, "with the packages for the microphone"),
    "export": (made.EXPORT, "make .venv-export (training, export) instead"),
    "kernels": (made.KERNELS, "install the Triton compiler, which tests GPU kernels, in .venv-export"),
    "frameworks": (made.FRAMEWORKS, "make .venv-frameworks (other makers' SDKs and frameworks) instead"),
    "deploy": (made.DEPLOY, "install what the files in deploy/ are tested with, in .venv-tools"),
    "images": (made.IMAGES, "install what images and the compose file are checked with, in .venv-tools"),
    "packing": (made.PACKING, "install what writes an image's SBOM, in .venv-tools"),
    "phoenix": (
        made.PHOENIX,
        "install Arize Phoenix, in which `make observe` shows traces, in .venv-phoenix",
    ),
}
EPILOG = """\
environment variables:
  PARLEY_PYTHON   the Python to build on: a path, or "managed" to let uv download one.
                  Default: the machine's Python 3.11 or 3.12 if its libpython is installed,
                  else a downloaded one
  PARLEY_BROWSER  a Chromium for --browser and the tests of the page
  UV_CACHE_DIR    where uv keeps packages (default: .cache/uv in the checkout)
  PIP_*, UV_*     package sources; pip's configuration files are honoured too

what a bare Debian or Ubuntu needs first (for the microphone also libportaudio2):
  Debian 12     sudo apt-get install make git python3-venv libpython3.11 libnuma1
  Ubuntu 24.04  sudo apt-get install make git python3-venv libpython3.12 libnuma1
  Ubuntu 22.04  sudo apt-get install make git python3-venv libnuma1       (Python is downloaded)
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status for the shell."""
    parser = argparse.ArgumentParser(
        prog="scripts/setup",
        description="Make .venv with everything that serving, tests and checks need. Quick if it is there.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    texts = {name: text for name, (_, text) in _ENVIRONMENTS.items()}
    texts |= {name: f"only provide {text}" for name, (text, _) in PROGRAMS.items()}
    for name, text in texts.items():
        what.add_argument(f"--{name}", dest="what", action="store_const", const=name, help=text)
    what.add_argument(
        "--image",
        choices=list(IN_IMAGES),
        help="make .venv with the packages that this image serves with, and nothing else",
    )
    parser.add_argument("--project", action="store_true", help="with --image: Parley itself, too")
    what.add_argument("--lock", action="store_true", help="resolve build/requirements/*.in instead")
    parser.add_argument("--upgrade", action="store_true", help="with --lock: take the newest versions")
    arguments = parser.parse_args(argv)
    try:
        if arguments.lock:
            write_locks(ROOT, upgrade=arguments.upgrade)
        elif arguments.what in PROGRAMS:
            _, provide = PROGRAMS[arguments.what]
            with _only_one("programs"):  # apt-get does not wait for another one
                provide(ROOT)
        else:
            environment, _ = _ENVIRONMENTS.get(arguments.what, (SERVE, ""))
            if arguments.image:
                environment = IN_IMAGES[arguments.image]
                environment = with_project(environment) if arguments.project else environment
            _make(environment)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


def _make(environment: Environment) -> None:
    if not is_ready(ROOT, environment):
        with _only_one("environments"):
            if not is_ready(ROOT, environment):  # another set-up may just have done it
                make(ROOT, environment)


@contextmanager
def _only_one(what: str) -> Iterator[None]:
    """Hold the checkout's lock for setting up programs, or environments."""
    folder = ROOT / ".cache"
    folder.mkdir(exist_ok=True)
    with (folder / f"setup-{what}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
