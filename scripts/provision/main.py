"""The command ``scripts/setup``."""

from __future__ import annotations

import argparse
import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.console import Progress, SetupError
from provision.environments import (
    EXPORT,
    FRAMEWORKS,
    KERNELS,
    PEERS,
    SERVE,
    TALK,
    is_ready,
    make,
    write_locks,
)
from provision.programs import provide_browser, provide_redis

ROOT = Path(__file__).resolve().parents[2]

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
    what.add_argument("--talk", action="store_true", help="with the packages for the microphone")
    what.add_argument("--export", action="store_true", help="make .venv-export (training, export) instead")
    what.add_argument(
        "--peers", action="store_true", help="make .venv-peers (programs to compare with) instead"
    )
    what.add_argument(
        "--kernels",
        action="store_true",
        help="make .venv-kernels (the Triton compiler that GPU kernels are tested with) instead",
    )
    what.add_argument(
        "--frameworks",
        action="store_true",
        help="make .venv-frameworks (what the plugins and the gateway are tested with) instead",
    )
    what.add_argument(
        "--browser",
        action="store_true",
        help="only provide the Chromium that the gateway's page is tested with",
    )
    what.add_argument(
        "--redis",
        action="store_true",
        help="only install the redis-server that rate limits are tested with, as root on Debian",
    )
    what.add_argument("--lock", action="store_true", help="resolve build/requirements/*.in instead")
    parser.add_argument("--upgrade", action="store_true", help="with --lock: take the newest versions")
    arguments = parser.parse_args(argv)
    chosen = {"talk": TALK, "export": EXPORT, "peers": PEERS, "frameworks": FRAMEWORKS, "kernels": KERNELS}
    environment = next((chosen[name] for name in chosen if getattr(arguments, name)), SERVE)
    try:
        if arguments.lock:
            write_locks(ROOT, upgrade=arguments.upgrade)
        elif arguments.browser:
            provide_browser()
        elif arguments.redis:
            provide_redis()
        elif not is_ready(ROOT, environment):
            with _only_one():
                if is_ready(ROOT, environment):  # another set-up has just done it
                    return 0
                progress = Progress(environment.steps)
                make(ROOT, environment, progress)
                progress.done(f"{environment.name} is ready")
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


@contextmanager
def _only_one() -> Iterator[None]:
    """Hold the checkout's set-up lock."""
    folder = ROOT / ".cache"
    folder.mkdir(exist_ok=True)
    with (folder / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another set-up of this checkout to end", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
