"""uv: installed into a small environment of its own, and run with the machine's package sources.

uv does not read pip's configuration, so that is translated into uv's variables.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from provision.system import SetupError, last_lines, run_quietly

UV_VERSION = "0.13.8"
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
        self._pip_config: dict[str, str] = {}

    def prepare(self) -> None:
        """Install uv, unless it is there, and read pip's configuration.

        Raises:
            SetupError: neither venv nor pip works on this machine.
        """
        if not Path(self.program).exists():
            pinned = ["install", "--quiet", "--disable-pip-version-check", f"uv=={UV_VERSION}"]
            for command in ([sys.executable, "-m", "venv", str(self._home)], [*self.pip, *pinned]):
                done = run_quietly(command, _QUICK_S)
                if done.returncode:
                    shutil.rmtree(self._home, ignore_errors=True)
                    raise SetupError(f"uv {UV_VERSION} cannot be had:\n{last_lines(done)}")
        self._pip_config = read_pip_config(self.pip)

    def run(self, *arguments: str, only_main: bool = True, folder: Path | None = None) -> None:
        """Run uv with its own output.

        Args:
            arguments: of uv.
            only_main: take packages from the main index only, not from all of the machine's sources.
            folder: its working directory; None: the checkout.

        Raises:
            SetupError: it failed; its own message has been shown.
        """
        environment = uv_environment(self._pip_config, os.environ, self._root, only_main=only_main)
        name = f"uv {' '.join(arguments[:2])}"
        try:
            status = subprocess.run(
                [self.program, *arguments],
                env=environment,
                cwd=folder or self._root,
                timeout=_DOWNLOAD_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise SetupError(f"{name} did not end within {_DOWNLOAD_S:.0f} s.") from error
        if status:
            raise SetupError(f"{name} failed with status {status}; its message is above.")

    def install(self, *arguments: str) -> None:
        """Install packages from the main index; if it lacks one, from all of the machine's sources.

        Another index may have some of a version's files only, and uv takes the first index that has the
        version: it would install a file without a program's own library although the main one has better.
        On a terminal uv shows its progress and lists the packages; elsewhere errors only.

        Raises:
            SetupError: it failed; its own message has been shown.
        """
        if not sys.stderr.isatty():
            arguments = (*arguments, "--quiet")
        try:
            self.run("pip", "install", *arguments)
        except SetupError:
            if not {"find-links", "extra-index-url"} & self._pip_config.keys():
                raise
            no_index = self._pip_config.get("no-index", "").lower() in ("1", "true", "yes", "on")
            self.run("pip", "install", *arguments, *(["--no-index"] if no_index else []), only_main=False)


def read_pip_config(pip: list[str]) -> dict[str, str]:
    """The options of pip itself, from its files and from PIP_* variables.

    Raises:
        SetupError: pip does not answer, or not as it quotes values.
    """
    return parse_pip_config(run_quietly([*pip, "config", "list"], _QUICK_S).stdout)


def parse_pip_config(text: str) -> dict[str, str]:
    """Parse the output of ``pip config list``: ``section.option='value'`` per line."""
    found: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if separator and section in _SECTIONS:
            try:
                found[section, option] = str(ast.literal_eval(value))
            except (ValueError, SyntaxError) as error:
                raise SetupError(f"pip's configuration cannot be understood: {line}") from error
    return {option: found[name, option] for name in _SECTIONS for section, option in found if section == name}


def uv_environment(
    config: Mapping[str, str], given: Mapping[str, str], root: Path, *, only_main: bool
) -> dict[str, str]:
    """The environment for uv: pip's sources, certificates and proxy, and caches inside the checkout.

    What the user has set for uv counts more than what is set for pip.
    """
    wanted = {
        "UV_CACHE_DIR": str(root / ".cache" / "uv"),
        "UV_PYTHON_INSTALL_DIR": str(root / ".cache" / "python"),
        "SSL_CERT_FILE": config.get("cert"),
        "ALL_PROXY": config.get("proxy"),
        "UV_HTTP_TIMEOUT": config.get("timeout") or config.get("default-timeout"),
        "UV_INSECURE_HOST": config.get("trusted-host"),
    }
    if not any(given.get(name) for name in _UV_INDEX_VARIABLES):
        wanted["UV_DEFAULT_INDEX"] = config.get("index-url")
        if not only_main:
            wanted["UV_INDEX"] = config.get("extra-index-url")
            # pip takes the best version from any index; uv would stop at the first that has the name.
            wanted["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if not only_main:
        wanted["UV_FIND_LINKS"] = ",".join(config.get("find-links", "").split())
    # A stray virtual environment must not be mistaken for the target.
    kept = {name: value for name, value in given.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    return {**{name: value for name, value in wanted.items() if value}, **kept}
