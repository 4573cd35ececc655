"""Programs that no Python package carries: Debian's, installed where root runs this, and perf_analyzer."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from provision.environments import locks_folder
from provision.system import SetupError, last_lines, loads, run_quietly, say
from provision.uv import Uv

_BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_LIMIT_S = 1200.0
_START = """\
#!/bin/sh
# perf_analyzer with its libraries: no other program gets them.
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$here/packages/nvidia/cuda_runtime/lib:$here/libb64/usr/lib/x86_64-linux-gnu:$LD_LIBRARY_PATH"
export LD_LIBRARY_PATH
exec "$here/packages/bin/perf_analyzer" "$@"
"""


def find_browser() -> str | None:
    """The program: PARLEY_BROWSER, or what the machine has."""
    given = os.environ.get("PARLEY_BROWSER")
    return given or next((found for found in map(shutil.which, _BROWSERS) if found), None)


def provide_browser(_root: Path) -> None:
    """Provide the browser that the gateway's page is tested with, and what the browser's driver loads.

    Raises:
        SetupError: something is missing; the message names the command that installs it.
    """
    is_there = {"chromium": bool(find_browser()), "libatomic1": loads("libatomic.so.1")}
    missing = [package for package, there in is_there.items() if not there]
    if missing and not _can_install():
        raise SetupError(
            f"The page is tested in Chromium. On Debian: sudo apt-get install {' '.join(missing)} "
            "(PARLEY_BROWSER=/path/to/chromium names another one)"
        )
    if missing:
        _install(missing)


def install_missing(programs: Mapping[str, str], _root: Path) -> None:
    """Install Debian's packages whose programs are missing, where this user can.

    Elsewhere tests are skipped, or say what they need. A Debian that has an init system also starts a
    package's service.

    Args:
        programs: a program by its package.

    Raises:
        SetupError: the installation failed.
    """
    missing = [package for package, program in programs.items() if not shutil.which(program)]
    if missing and _can_install():
        _install(missing)


def provide_telephones(_root: Path) -> None:
    """Install SIPp, baresip and sofia-sip where they are missing and this user can."""
    library = "libsofia-sip-ua0"
    install_missing(_TELEPHONES | ({} if loads("libsofia-sip-ua.so.0") else {library: library}), _root)


def provide_prometheus(root: Path) -> None:
    """Provide Debian's prometheus, promtool and amtool in ``.cache``, where apt-get can download them.

    Nothing is installed: the package would start a service.

    Raises:
        SetupError: the download failed.
    """
    for package, program in (("prometheus", "prometheus"), ("prometheus-alertmanager", "amtool")):
        folder = root / ".cache" / package
        if not shutil.which(program) and not (folder / "usr" / "bin" / program).exists():
            _unpack(package, folder)


def provide_perf_analyzer(root: Path) -> None:
    """Provide Triton's perf_analyzer in ``.cache``, unless it was made from the present lock.

    The program comes out of wheels, and the one library that no wheel carries out of Debian's package.

    Raises:
        SetupError: something cannot be had; the message names the remedy.
    """
    folder = root / ".cache" / "perf-analyzer"
    program, stamp = folder / "perf_analyzer", folder / "stamp"
    lock = locks_folder(root) / "perf-analyzer.txt"
    wanted = lock.read_text() + _START
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say("getting perf_analyzer")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    uv = Uv(root)
    uv.prepare()
    place = ("--python", sys.executable, "--target", str(folder / "packages"))
    uv.install(*place, "--quiet", "--no-deps", "--only-binary", ":all:", "-r", str(lock))
    real = folder / "packages" / "bin" / "perf_analyzer"
    if not real.exists():
        raise SetupError(
            f"{lock.name} brought no {real.name}: this machine's package source has another wheel"
        )
    real.chmod(0o755)
    if not loads("libb64.so.0d"):
        _unpack("libb64-0d", folder / "libb64")
    program.write_text(_START)
    program.chmod(0o755)
    if run_quietly([str(program), "--version"], _LIMIT_S).returncode:
        raise SetupError(f"{program} was made and does not start")
    stamp.write_text(wanted)


def _unpack(package: str, folder: Path) -> None:
    """Put the files of a Debian package into a folder, without installing it; apt-get checks what it gets."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise SetupError(f"{package} is not on this machine, and there is no apt-get to download it with.")
    say(f"downloading {package} with apt-get")
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        files = Path(temporary, "files")
        script = 'apt-get -q download "$1" && dpkg-deb -x ./*.deb "$2"'
        command = ["sh", "-c", script, "-", package, str(files)]
        done = run_quietly(command, _LIMIT_S, folder=Path(temporary))
        if done.returncode and _can_install():  # the lists of packages may be missing
            run_quietly(["apt-get", "update", "--quiet"], _LIMIT_S)
            done = run_quietly(command, _LIMIT_S, folder=Path(temporary))
        if done.returncode:
            raise SetupError(
                f"{package} cannot be downloaded (else: sudo apt-get install {package}):\n{last_lines(done)}"
            )
        files.rename(folder)


def _can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install(packages: list[str]) -> None:
    say(f"installing {' and '.join(packages)} with apt-get")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages]
    done = run_quietly(command, _LIMIT_S, quiet)
    if done.returncode:  # the lists of packages may be missing, or too old
        run_quietly(["apt-get", "update", "--quiet"], _LIMIT_S, quiet)
        done = run_quietly(command, _LIMIT_S, quiet)
    if done.returncode:
        raise SetupError(f"{' '.join(command)} failed:\n{last_lines(done)}")


_TELEPHONES = {"baresip-core": "baresip", "sip-tester": "sipp"}
_CLUSTER = {"iproute2": "ip", "nftables": "nft", "nginx-light": "nginx", "redis-server": "redis-server"}
_CONTAINERS = {
    **{name: name for name in ("buildah", "catatonit", "crun", "debootstrap", "openssl", "podman", "runc")},
    "nginx-light": "nginx",
    "redis-server": "redis-server",
}
PROGRAMS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "browser": ("the Chromium that the gateway's page is tested with", provide_browser),
    "redis": (
        "the redis-server that rate limits are tested with, as root on Debian",
        partial(install_missing, {"redis-server": "redis-server"}),
    ),
    "postgres": (
        "the PostgreSQL that shared vectors are tested with, as root on Debian",
        partial(install_missing, {"postgresql": "pg_ctlcluster"}),
    ),
    "telephones": (
        "SIP's library, and telephones that tests call with, as root on Debian",
        provide_telephones,
    ),
    "containers": (
        "what images are built, run and tested with, as root on Debian",
        partial(install_missing, _CONTAINERS),
    ),
    "cluster": ("what `make chaos` and tests need, as root on Debian", partial(install_missing, _CLUSTER)),
    "prometheus": ("Prometheus, which `make observe` and tests use, in .cache", provide_prometheus),
    "perf-analyzer": ("Triton's perf_analyzer, in .cache/perf-analyzer", provide_perf_analyzer),
}
"""What each is, and what provides it for a checkout."""
