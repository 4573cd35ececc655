"""Unpacking a .nemo file, which may come from anywhere.

NeMo's own way needs a ``tarfile`` with filters, which the Python 3.11 of Debian 12 lacks.
"""

from __future__ import annotations

import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from comparison import ExportError

NEEDED = ("model_config.yaml", "model_weights.ckpt")
MAX_BYTES = 64 << 30
"""Largest checkpoint, unpacked."""
MAX_MEMBERS = 10_000


def unpack(nemo: Path, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
    """Write the files of a .nemo archive into an empty folder, and nothing anywhere else.

    Args:
        nemo: a tar archive, perhaps compressed.
        folder: where to.
        max_bytes: size of all files together.

    Raises:
        ExportError: it is no such archive, is too large, or has more than files and folders in it.
    """
    try:
        with tarfile.open(nemo) as archive:
            _extract(archive, folder, min(max_bytes, shutil.disk_usage(folder).free))
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise ExportError(f"{nemo} is not a .nemo file: it is no tar archive, or a part of one") from error
    except (_UnsuitableError, FileExistsError, NotADirectoryError) as error:
        raise ExportError(f"{nemo} is not unpacked: {error}") from error
    if missing := [name for name in NEEDED if not (folder / name).is_file()]:
        raise ExportError(f"{nemo} is not a .nemo file: there is no {' and no '.join(missing)} in it")


class _UnsuitableError(Exception):
    """Something in the archive cannot be unpacked."""


def _extract(archive: tarfile.TarFile, folder: Path, room: int) -> None:
    for number, member in enumerate(archive):
        path = PurePosixPath(member.name)
        room -= member.size
        if path.is_absolute() or ".." in path.parts:
            raise _UnsuitableError(f"{member.name!r} in it would lie elsewhere")
        if not (member.isreg() or member.isdir()):
            raise _UnsuitableError(f"{member.name!r} in it is neither a file nor a folder")
        if room < 0 or number >= MAX_MEMBERS:
            raise _UnsuitableError("what is in it is more than there is room for")
        target = folder / path
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        assert content is not None  # it is a file
        with content, target.open("xb") as output:
            shutil.copyfileobj(content, output, 1 << 20)
