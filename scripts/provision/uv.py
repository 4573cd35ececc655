"""uv: installed into a small environment of its own, and run with the machine's package sources.

uv does not read pip's configuration, so that is translated into options and variables.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from provision.system import SetupError

UV_VERSION = "0.13.8"
_PACKAGE = re.compile(r" [-+~] \S| *(Downloading|Downloaded|Building|Built|Updating|Updated) ")
"""A line of uv about one package of many."""
_LARGE = re.compile(r" *Downloading \S+ \((\d{3,}\.\dMiB|[\d.]+GiB)\)")
"""The line of a package whose download takes long."""
# Seconds. Downloads have deadlines of their own; these are for what hangs all the same.
_QUICK_S = 300.0
_DOWNLOAD_S = 3600.0

_SECTIONS = ("global", "install", ":env:")
"""Sections of pip's configuration, the weakest first."""
_UV_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")


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
        """Install uv, unless it is there, and read pip's configuration.

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
            folder: its working directory; None: the checkout.

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
        """Bytes of each wheel of a lock; None where the index gives no size.

        Raises:
            SetupError: the index lacks a package of the lock.
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
        """Folders that an installation fills: the environment, and uv's cache if that is on another disk."""
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
        """Install with pip into another environment, without output; returns whether it succeeded."""
        command = [*self.pip, "--python", str(python), "install", "--disable-pip-version-check", *arguments]
        return run_quietly(command, _DOWNLOAD_S).returncode == 0


def _run_readably(command: list[str], environment: dict[str, str], folder: Path) -> int | None:
    """Run uv with its output, but of single packages the large ones only; None if it hangs."""
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
            command, capture_output=True, text=True, check=False, timeout=limit_s, env=environment, cwd=folder
        )
    except subprocess.TimeoutExpired as error:
        name = " ".join(command[:4])
        raise SetupError(f"{name} did not end within {limit_s:.0f} s. Is the network reachable?") from error


def _last_lines(finished: subprocess.CompletedProcess[str], count: int = 5) -> str:
    lines = (finished.stdout + finished.stderr).strip().splitlines()
    return "\n".join(f"    {line}" for line in lines[-count:])


def read_pip_config(pip: list[str]) -> dict[str, str]:
    """The options of pip itself, from its files and from PIP_* variables."""
    try:
        answer = subprocess.run(
            [*pip, "config", "list"], capture_output=True, text=True, check=False, timeout=60
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError("pip config list did not end within 60 s.") from error
    return parse_pip_config(answer.stdout)


def parse_pip_config(text: str) -> dict[str, str]:
    """Parse the output of ``pip config list``: ``section.option='value'`` per line.

    Raises:
        SetupError: a value is not quoted as pip quotes it.
    """
    sections: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if separator and section in sections:
            sections[section][option] = _unquote(value, line)
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged.update(sections[section])
    return merged


def _unquote(value: str, line: str) -> str:
    try:
        return str(ast.literal_eval(value))
    except (ValueError, SyntaxError) as error:
        raise SetupError(f"pip's configuration cannot be understood: {line}") from error


def uv_options(config: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Pip's package sources as options of ``uv pip``.

    Index options are left out where uv itself is configured.
    """
    options: list[str] = []
    for place in config.get("find-links", "").split():
        options += ["--find-links", place]
    for host in config.get("trusted-host", "").split():
        options += ["--allow-insecure-host", host]
    if any(environment.get(name) for name in _UV_INDEX_VARIABLES):
        return options
    if config.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return [*options, "--no-index"]
    for url in config.get("extra-index-url", "").split():
        options += ["--index", url]
    if config.get("index-url"):
        options += ["--default-index", config["index-url"]]
    if "--index" in options:
        # pip takes the best version from any index; uv would stop at the first that has the name.
        options += ["--index-strategy", "unsafe-best-match"]
    return options


def uv_environment(config: Mapping[str, str], environment: Mapping[str, str], root: Path) -> dict[str, str]:
    """The environment for uv: pip's certificates and proxy, and a cache inside the checkout."""
    found = dict(environment)
    found.setdefault("UV_CACHE_DIR", str(root / ".cache" / "uv"))
    found.setdefault("UV_PYTHON_INSTALL_DIR", str(root / ".cache" / "python"))
    if config.get("cert"):
        found.setdefault("SSL_CERT_FILE", config["cert"])
    if config.get("proxy"):
        found.setdefault("ALL_PROXY", config["proxy"])
    if config.get("default-timeout") or config.get("timeout"):
        found.setdefault("UV_HTTP_TIMEOUT", config.get("timeout") or config["default-timeout"])
    # A stray virtual environment must not be mistaken for the target.
    found.pop("VIRTUAL_ENV", None)
    found.pop("PYTHONPATH", None)
    return found
