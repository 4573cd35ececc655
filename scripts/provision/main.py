"""The command ``scripts/setup``, and the programs that tests need from Debian."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.environments import (
    DEPLOY,
    EXPORT,
    FRAMEWORKS,
    IMAGE_GATEWAY,
    IMAGE_WORKER,
    IMAGE_WORKER_GPU,
    IMAGES,
    KERNELS,
    LOAD,
    PACKING,
    PEERS,
    PHOENIX,
    SERVE,
    TALK,
    is_ready,
    make,
    with_project,
    write_locks,
)
from provision.perf_analyzer import provide_perf_analyzer
from provision.system import BROWSING, Progress, SetupError, loads
from provision.uv import run_quietly

_BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_INSTALL = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends"]
_UPDATE = ["apt-get", "update", "--quiet"]
_LIMIT_S = 1200.0
_CONTAINERS = {
    "buildah": "buildah",
    "catatonit": "catatonit",
    "crun": "crun",
    "debootstrap": "debootstrap",
    "nginx-light": "nginx",
    "openssl": "openssl",
    "podman": "podman",
    "redis-server": "redis-server",
    "runc": "runc",
}
"""Packages and their programs."""
_CLUSTER = {
    "iproute2": "ip",
    "nftables": "nft",
    "nginx-light": "nginx",
    "redis-server": "redis-server",
}
_IMAGES = {"gateway": IMAGE_GATEWAY, "worker": IMAGE_WORKER, "worker-gpu": IMAGE_WORKER_GPU}
"""Environments by the name of their image."""

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


def find_browser() -> str | None:
    """The program: PARLEY_BROWSER, or what the machine has."""
    given = os.environ.get("PARLEY_BROWSER")
    return given or next((found for found in map(shutil.which, _BROWSERS) if found), None)


def provide_browser() -> None:
    """Provide the browser that the gateway's page is tested with, and what drives it.

    Raises:
        SetupError: something is missing; the message names the command that installs it.
    """
    missing = _missing_for_the_page()
    if not missing:
        return
    if not _can_install():
        raise SetupError(
            f"The page is tested in Chromium. On Debian: sudo apt-get install {' '.join(missing)} "
            "(PARLEY_BROWSER=/path/to/chromium names another one)"
        )
    _install(missing)
    if still := _missing_for_the_page():
        raise SetupError(f"{' and '.join(still)} were installed, and cannot be found all the same")


def provide_redis() -> None:
    """Provide the redis-server that shared rate limits are tested with, where this user can install it.

    Elsewhere its tests are skipped. A Debian that has an init system also starts the package's service.

    Raises:
        SetupError: the installation failed.
    """
    if shutil.which("redis-server") or not _can_install():
        return
    _install(["redis-server"])
    if not shutil.which("redis-server"):
        raise SetupError("redis-server was installed, and cannot be found all the same")


def provide_containers() -> None:
    """Provide what builds images and runs containers, and the web server in front of them, where possible.

    Elsewhere their tests are skipped.

    Raises:
        SetupError: the installation failed.
    """
    _install_missing(_CONTAINERS)


def provide_cluster() -> None:
    """Provide what `make cluster` makes nodes of, and what runs in them, where possible.

    Raises:
        SetupError: the installation failed.
    """
    _install_missing(_CLUSTER)


def _install_missing(programs: dict[str, str]) -> None:
    missing = [package for package, program in programs.items() if not shutil.which(program)]
    if missing and _can_install():
        _install(missing)


def provide_prometheus() -> None:
    """Provide Debian's prometheus, promtool and amtool in ``.cache``, where apt-get can download them.

    Nothing is installed: the package would start a service.

    Raises:
        SetupError: the download failed.
    """
    for package, program in (("prometheus", "prometheus"), ("prometheus-alertmanager", "amtool")):
        folder = ROOT / ".cache" / package
        if not shutil.which(program) and not (folder / "usr" / "bin" / program).exists():
            _unpack(package, folder)


def provide_compiler() -> None:
    """Provide the C compiler with which `make chaos` builds a clock that can be set, where possible.

    Raises:
        SetupError: the installation failed.
    """
    if not shutil.which("cc") and _can_install():
        _install(["gcc", "libc6-dev"])


def _unpack(package: str, folder: Path) -> None:
    """Put the files of a Debian package into a folder, without installing it."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise SetupError(f"{package} is not on this machine, and there is no apt-get to download it with.")
    print(f"downloading {package} with apt-get", file=sys.stderr)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        command = ["sh", "-c", 'cd "$1" && apt-get -q download "$2"', "-", temporary, package]
        done = run_quietly(command, _LIMIT_S)
        if done.returncode and _can_install():  # the lists of packages may be missing
            run_quietly(_UPDATE, _LIMIT_S)
            done = run_quietly(command, _LIMIT_S)
        for file in Path(temporary).glob("*.deb"):
            unpacked = Path(temporary) / "files"
            done = run_quietly(["dpkg-deb", "-x", str(file), str(unpacked)], _LIMIT_S)
            if not done.returncode:
                unpacked.rename(folder)
                return
        raise SetupError(f"{package} could not be downloaded: {done.stderr.strip()[-500:]}")


def _missing_for_the_page() -> list[str]:
    """Packages of Debian that are needed."""
    chromium = [] if find_browser() else ["chromium"]
    return [*chromium, *([] if loads(BROWSING.soname) else [BROWSING.package])]


def _can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install(packages: list[str]) -> None:
    print(f"installing {' and '.join(packages)} with apt-get", file=sys.stderr)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    command = [*_INSTALL, *packages]
    with _only_one():  # apt-get does not wait for another one
        # The lists of packages may be missing, or too old.
        if run_quietly(command, _LIMIT_S, quiet).returncode == 0:
            return
        run_quietly(_UPDATE, _LIMIT_S, quiet)
        done = run_quietly(command, _LIMIT_S, quiet)
    if done.returncode:
        last = "\n".join(f"    {line}" for line in done.stderr.strip().splitlines()[-5:])
        raise SetupError(f"{' '.join(command)} failed:\n{last}")


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
        "--peers", action="store_true", help="install what `make bench-asr` compares with, in .venv-export"
    )
    what.add_argument(
        "--kernels",
        action="store_true",
        help="install the Triton compiler, with which GPU kernels are tested, in .venv-export",
    )
    what.add_argument(
        "--frameworks",
        action="store_true",
        help="make .venv-frameworks (what the plugins and the gateway are tested with) instead",
    )
    what.add_argument(
        "--load", action="store_true", help="install locust, for `make load`, in .venv-frameworks"
    )
    what.add_argument(
        "--deploy",
        action="store_true",
        help="install Helm's engine and Kubernetes' schemas, for the tests of deploy/, in .venv-tools",
    )
    what.add_argument(
        "--phoenix",
        action="store_true",
        help="install Arize Phoenix, in which `make observe` shows traces, in .venv-phoenix",
    )
    what.add_argument(
        "--images",
        action="store_true",
        help="install what images and the compose file are checked with, in .venv-tools",
    )
    what.add_argument(
        "--packing", action="store_true", help="install what writes an image's SBOM, in .venv-tools"
    )
    what.add_argument(
        "--image",
        choices=list(_IMAGES),
        help="make .venv with the packages that this image serves with, and nothing else",
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
    what.add_argument(
        "--containers",
        action="store_true",
        help="only install what images are built, run and tested with, as root on Debian",
    )
    what.add_argument(
        "--cluster",
        action="store_true",
        help="only install what `make cluster` needs, as root on Debian",
    )
    what.add_argument(
        "--prometheus",
        action="store_true",
        help="only download Prometheus, which `make observe` and tests use",
    )
    what.add_argument(
        "--compiler",
        action="store_true",
        help="only provide a C compiler, with which `make chaos` builds a clock that can be set",
    )
    what.add_argument(
        "--perf-analyzer",
        action="store_true",
        help="only provide Triton's perf_analyzer, in .cache/perf-analyzer",
    )
    parser.add_argument("--project", action="store_true", help="with --image: Parley itself, too")
    what.add_argument("--lock", action="store_true", help="resolve build/requirements/*.in instead")
    parser.add_argument("--upgrade", action="store_true", help="with --lock: take the newest versions")
    arguments = parser.parse_args(argv)
    chosen = {
        "talk": TALK,
        "export": EXPORT,
        "peers": PEERS,
        "frameworks": FRAMEWORKS,
        "kernels": KERNELS,
        "load": LOAD,
        "deploy": DEPLOY,
        "phoenix": PHOENIX,
        "images": IMAGES,
        "packing": PACKING,
        "image": _IMAGES.get(arguments.image, SERVE),
    }
    programs = {
        "browser": provide_browser,
        "redis": provide_redis,
        "containers": provide_containers,
        "cluster": provide_cluster,
        "prometheus": provide_prometheus,
        "compiler": provide_compiler,
    }
    provide = next((programs[name] for name in programs if getattr(arguments, name)), None)
    environment = next((chosen[name] for name in chosen if getattr(arguments, name)), SERVE)
    if arguments.image and arguments.project:
        environment = with_project(environment)
    try:
        if arguments.lock:
            write_locks(ROOT, upgrade=arguments.upgrade)
        elif provide is not None:
            provide()
        elif arguments.perf_analyzer:
            with _only_one():
                provide_perf_analyzer(ROOT)
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
