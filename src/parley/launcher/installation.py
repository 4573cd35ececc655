"""Where the parts of the embedded Triton lie in this Python environment.

The wheel ``nvidia-pytriton`` carries the real ``tritonserver``, its Python backend and one
stub per Python version. The stub loads ``libpython3.X.so.1.0``, and it must be the very library
of the interpreter whose packages the models import: another patch release breaks extension
modules such as ``_ssl``.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from parley.launcher.errors import SetupIncompleteError

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBPYTHON = f"libpython{PYTHON}.so.1.0"


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Files and folders that a start needs."""

    tritonserver: Path
    python_backend: Path
    """Folder with ``libtriton_python.so`` and ``triton_python_backend_utils.py``."""
    stub: Path
    libraries: Path
    """Folder with the server's own shared libraries."""
    libpython_dir: Path | None
    """Folder of the interpreter's shared library; None: the system's loader finds it."""
    python_bin: Path
    """Folder of the environment's ``python``; the stub finds the environment through PATH."""


def find_installation() -> Installation:
    """Look for the embedded Triton in the running environment.

    Raises:
        SetupIncompleteError: it, its stub for this Python, or libpython is missing.
    """
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise SetupIncompleteError(
            f"The embedded Triton (package nvidia-pytriton) is not installed in {sys.prefix}. Run: make setup"
        )
    package = Path(spec.origin).parent
    triton = package / "tritonserver"
    found = Installation(
        tritonserver=triton / "bin" / "tritonserver",
        python_backend=triton / "backends" / "python",
        stub=triton / "python_backend_stubs" / PYTHON / "triton_python_backend_stub",
        libraries=package.parent / "nvidia_pytriton.libs",
        libpython_dir=find_libpython(),
        python_bin=Path(sys.prefix) / "bin",
    )
    for path in (found.tritonserver, found.python_backend, found.stub, found.libraries):
        if not path.exists():
            raise SetupIncompleteError(
                f"{path} is missing: nvidia-pytriton is damaged or has no stub for Python {PYTHON}. "
                "Run: make clean setup"
            )
    return found


def find_libpython() -> Path | None:
    """The folder of the interpreter's shared library, or None if the loader's cache has it.

    Raises:
        SetupIncompleteError: there is none on this machine.
    """
    candidates = [Path(str(sysconfig.get_config_var("LIBDIR") or "")), Path(sys.base_prefix) / "lib"]
    for folder in candidates:
        if (folder / LIBPYTHON).is_file():
            return folder
    if LIBPYTHON in _loader_cache():
        return None
    raise SetupIncompleteError(
        f"{LIBPYTHON} was not found; the models' processes load it. On Debian and Ubuntu: "
        f"sudo apt-get install libpython{PYTHON}. "
        "Or let the set-up fetch a Python that carries its own: PARLEY_PYTHON=managed make clean setup"
    )


def _loader_cache() -> str:
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if ldconfig is None:
        return ""
    return subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False, timeout=10).stdout


def assemble_backend(installation: Installation, target: Path) -> None:
    """Make ``target``/python the backend folder that Triton expects: links, no copies.

    Args:
        installation: what to link to.
        target: Triton's ``--backend-directory``; created if absent.
    """
    folder = target / "python"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {path.name: path for path in installation.python_backend.iterdir() if path.is_file()}
    wanted[installation.stub.name] = installation.stub
    for link in folder.iterdir():
        # The stub writes its __pycache__ beside the links.
        if link.is_symlink() and link.readlink() != wanted.get(link.name):
            link.unlink()
    for name, path in wanted.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(path)
