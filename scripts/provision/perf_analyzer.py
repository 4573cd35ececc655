"""The real perf_analyzer in the checkout's cache; nothing is installed on the machine.

The program comes out of wheels, and the one library that no wheel carries out of Debian's package.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from provision.environments import locks_folder
from provision.system import SetupError, loads
from provision.uv import Uv, run_quietly

LOCK = "perf-analyzer.txt"
_B64 = "libb64.so.0d"
_B64_PACKAGE = "libb64-0d"
_B64_VERSION = "1.2-5+b1"
_B64_SHA256 = "b0e1d6fde8bdccc18c3884144aede064dc82464dd4777275fa80e74c05583e82"
"""Of Debian 12's package for x86-64."""
_INSTALL_IT = f"On Debian and Ubuntu: sudo apt-get install {_B64_PACKAGE}"
_LIMIT_S = 300.0
_START = """\
#!/bin/sh
# perf_analyzer with its libraries: no other program gets them.
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$here/packages/nvidia/cuda_runtime/lib:$here/usr/lib/x86_64-linux-gnu:$LD_LIBRARY_PATH"
export LD_LIBRARY_PATH
exec "$here/packages/bin/perf_analyzer" "$@"
"""


def perf_analyzer_path(root: Path) -> Path:
    """The program that :func:`provide_perf_analyzer` makes."""
    return root / ".cache" / "perf-analyzer" / "perf_analyzer"


def provide_perf_analyzer(root: Path) -> None:
    """Provide the program, unless it was made from the present lock.

    Raises:
        SetupError: something cannot be had; the message names the remedy.
    """
    program = perf_analyzer_path(root)
    folder, stamp = program.parent, program.parent / "stamp"
    lock = locks_folder(root) / LOCK
    wanted = hashlib.sha256(lock.read_bytes() + _START.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted and _version(program):
        return
    print("getting perf_analyzer", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    uv = Uv(root)
    uv.prepare()
    place = ("--python", sys.executable, "--target", str(folder / "packages"))
    uv.install(*place, "--quiet", "--no-deps", "--only-binary", ":all:", "-r", str(lock))
    real = folder / "packages" / "bin" / "perf_analyzer"
    if not real.exists():
        raise SetupError(f"{LOCK} brought no perf_analyzer: this machine's package source has another wheel")
    real.chmod(0o755)
    if not loads(_B64):
        _unpack_b64(folder)
    program.write_text(_START)
    program.chmod(0o755)
    if not _version(program):
        raise SetupError(f"{program} was made and does not start")
    stamp.write_text(wanted)


def _unpack_b64(folder: Path) -> None:
    """Unpack Debian's library in the folder; that needs no root."""
    command = ["apt-get", "download", "--quiet", f"{_B64_PACKAGE}={_B64_VERSION}"]
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise SetupError(f"{_B64} is missing (perf_analyzer loads it). {_INSTALL_IT}")
    if run_quietly(command, _LIMIT_S, folder=folder).returncode:
        # The lists of packages may be missing; only root can fetch them.
        run_quietly(["apt-get", "update", "--quiet"], _LIMIT_S)
        done = run_quietly(command, _LIMIT_S, folder=folder)
        if done.returncode:
            last = "\n".join(f"    {line}" for line in done.stderr.strip().splitlines()[-5:])
            raise SetupError(f"{' '.join(command)} failed:\n{last}\n{_INSTALL_IT}")
    (package,) = folder.glob(f"{_B64_PACKAGE}_*.deb")
    found = hashlib.sha256(package.read_bytes()).hexdigest()
    if found != _B64_SHA256:
        package.unlink()
        raise SetupError(f"{package.name} has the checksum {found}, not {_B64_SHA256}. {_INSTALL_IT}")
    unpacked = run_quietly(["dpkg", "-x", str(package), str(folder)], _LIMIT_S)
    if unpacked.returncode:
        raise SetupError(f"{package} cannot be unpacked:\n{unpacked.stderr.strip()}")


def _version(program: Path) -> bool:
    """Whether the program starts, with all of its libraries."""
    return program.exists() and run_quietly([str(program), "--version"], _LIMIT_S).returncode == 0
