"""uv: found, or installed into a small environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from provision.console import SetupError
from provision.sources import read_pip_config, uv_environment, uv_options

UV_VERSION = "0.13.8"
_PACKAGE = re.compile(r" [-+~] \S| *(Downloading|Downloaded|Building|Built|Updating|Updated) ")
"""A line of uv about one package of many."""
_LARGE = re.compile(r" *Downloading \S+ \((\d{3,}\.\dMiB|[\d.]+GiB)\)")
"""The line of a package that takes so long that somebody may wonder what is going on."""
# Seconds. Downloads have deadlines of their own; these are for what hangs all the same.
_QUICK_S = 300.0
_DOWNLOAD_S = 3600.0


class Uv:
    """Runs uv with the machine's package sources."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._home = root / ".cache" / f"uv-{UV_VERSION}"
        self.program = str(self._home / "bin" / "uv")
        self.pip = [str(self._home / "bin" / "python"), "-m", "pip"]
        self._sources: dict[str, list[str]] = {"none": []}
        self._environment: dict[str, str] = {}

    def prepare(self) -> None:
        """Install uv, unless that was done before, and read pip's configuration.

        Raises:
            SetupError: neither venv nor pip works on this machine.
        """
        if not Path(self.program).exists():
            self._install()
        config = read_pip_config(self.pip)
        self._sources["all"] = uv_options(config, os.environ)
        main = {name: value for name, value in config.items() if name in ("index-url", "trusted-host")}
        self._sources["main"] = uv_options(main, os.environ)
        self._environment = uv_environment(config, os.environ, self._root)

    def _install(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)
        made = run_quietly([sys.executable, "-m", "venv", str(self._home)], _QUICK_S)
        if made.returncode:
            shutil.rmtree(self._home, ignore_errors=True)
            raise SetupError(f"{sys.executable} cannot make virtual environments:\n{_last_lines(made)}")
        command = [*self.pip, "install", "--quiet", "--disable-pip-version-check", f"uv=={UV_VERSION}"]
        installed = run_quietly(command, _QUICK_S)
        if installed.returncode:
            shutil.rmtree(self._home, ignore_errors=True)
            raise SetupError(
                f"uv {UV_VERSION} could not be installed with pip. Is a package index reachable?\n"
                f"{_last_lines(installed)}"
            )

    def run(self, *arguments: str, sources: str = "none", folder: Path | None = None) -> None:
        """Run uv and show its progress.

        Args:
            arguments: of uv.
            sources: package sources to add: ``none``, ``all``, or ``main`` (the main index only).
            folder: where to run it; None: the checkout.

        Raises:
            SetupError: it failed; its own message has been shown.
        """
        command = [self.program, *arguments, *self._sources[sources]]
        place = folder or self._root
        status = _run_readably(command, self._environment, place)
        if status is None:
            raise SetupError(f"uv {' '.join(arguments[:2])} did not end within {_DOWNLOAD_S:.0f} s.")
        if status:
            raise SetupError(
                f"uv {' '.join(arguments[:2])} failed with status {status}; its message is above."
            )

    def sizes(self, lock: Path, python: Path) -> list[int | None]:
        """How large each wheel of a lock is (bytes), from its index; None where the index does not say.

        Raises:
            SetupError: the index has not what is locked.
        """
        command = [self.program, "pip", "compile", "--quiet", "--no-deps", "--python", str(python), str(lock)]
        done = run_quietly(
            [*command, "--format", "pylock.toml", *self._sources["main"]], _QUICK_S, self._environment
        )
        if done.returncode:
            raise SetupError(f"the package index has not all of {lock.name}:\n{_last_lines(done)}")
        # One wheel for each package: the others are for other platforms. No tomllib in Python 3.10.
        packages = done.stdout.split("[[packages]]")[1:]
        found = [re.search(r"\bsize = (\d+)", package) for package in packages]
        return [int(size[1]) if size else None for size in found]

    def folders_filled(self, python: Path) -> list[Path]:
        """Where an interpreter's packages are written: its environment, and uv's cache on another disk."""
        cache = Path(self._environment["UV_CACHE_DIR"])
        cache.mkdir(parents=True, exist_ok=True)
        home = python.parents[1]
        return [home] if cache.stat().st_dev == home.stat().st_dev else [home, cache]

    def install(self, *arguments: str) -> None:
        """Install packages from the main index; if it lacks one, from all of the machine's sources.

        Another index may have some of a version's files only, and uv takes the first index that has the
        version: it would install a file without a program's own library although the main one has better.

        Raises:
            SetupError: it failed; its own message has been shown.
        """
        try:
            self.run("pip", "install", *arguments, sources="main")
        except SetupError:
            if self._sources["all"] == self._sources["main"]:
                raise
            self.run("pip", "install", *arguments, sources="all")

    def try_pip(self, python: Path, *arguments: str) -> bool:
        """Install with pip into another environment, quietly; False if that did not work."""
        command = [*self.pip, "--python", str(python), "install", "--disable-pip-version-check", *arguments]
        return run_quietly(command, _DOWNLOAD_S).returncode == 0


def _run_readably(command: list[str], environment: dict[str, str], folder: Path) -> int | None:
    """Run uv and show what it says, but of single packages the large ones only; None if it hangs."""
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    hangs = threading.Event()

    def end() -> None:
        hangs.set()
        process.kill()

    limit = threading.Timer(_DOWNLOAD_S, end)
    limit.start()
    try:
        with process:
            assert process.stderr is not None  # it is a pipe
            for line in process.stderr:
                if not _PACKAGE.match(line) or _LARGE.match(line):
                    print(f"      {line.strip()}", file=sys.stderr, flush=True)
    except BaseException:  # for example Ctrl-C
        process.kill()
        raise
    finally:
        limit.cancel()
    return None if hangs.is_set() else process.returncode


def run_quietly(
    command: list[str], limit_s: float, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program and keep what it prints.

    Args:
        command: the program and its arguments.
        limit_s: how long it may take (seconds).
        more: environment variables that it gets besides those of this process.

    Raises:
        SetupError: it did not end within ``limit_s`` seconds.
    """
    try:
        environment = {**os.environ, **(more or {})}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=limit_s, env=environment
        )
    except subprocess.TimeoutExpired as error:
        name = " ".join(command[:4])
        raise SetupError(f"{name} did not end within {limit_s:.0f} s. Is the network reachable?") from error


def _last_lines(finished: subprocess.CompletedProcess[str], count: int = 5) -> str:
    lines = (finished.stdout + finished.stderr).strip().splitlines()
    return "\n".join(f"    {line}" for line in lines[-count:])
