"""The locks: options with which ``uv pip compile`` resolves each ``.in`` file in build/requirements."""

from __future__ import annotations

from pathlib import Path

from provision.environments import locks_folder
from provision.system import say
from provision.uv import Uv

_COMMON = "--generate-hashes --no-header --no-emit-index-url --no-emit-find-links --quiet"
_CPU = "--python-version=3.11 --python-platform=x86_64-manylinux_2_35"
# Ubuntu 24.04, on which NVIDIA's Triton images are built.
_GPU = "--python-version=3.12 --python-platform=x86_64-manylinux_2_39"
_WHEELS = "--only-binary=:all:"
_NO_TORCH = "--excludes=excludes.txt"
_SERVING = f"{_NO_TORCH} {_WHEELS} --override=overrides.txt"  # numpy 1, for Triton
_OPTIONS = {
    "serve": _SERVING,
    "dev": _SERVING,
    "talk": _SERVING,
    "gateway": _SERVING,
    # What it leaves out is in the locks of all images, in different versions.
    "project": f"{_SERVING} --no-emit-package=packaging",
    "serve-gpu": f"{_WHEELS} --override=overrides-gpu.txt",
    "export": _NO_TORCH,  # one package of NeMo's exists as source only
    "chatterbox": "--no-deps",
    "networks": f"--no-deps {_WHEELS}",
    "kernels": _WHEELS,
    "torch-cuda": f"--excludes=torch-excludes.txt {_WHEELS}",
    "frameworks": _NO_TORCH,
    "speech-to-speech": f"--no-deps {_WHEELS}",
    "deploy": f"{_NO_TORCH} {_WHEELS}",
    "phoenix": f"{_NO_TORCH} {_WHEELS}",
    "perf-analyzer": f"--no-deps {_WHEELS}",
    "node": f"--no-deps {_WHEELS}",
    "packing": _WHEELS,
    "images": "",
}


def write_locks(root: Path, *, upgrade: bool) -> None:
    """Resolve every ``.in`` file into its ``.txt``; ``upgrade``: to the newest versions.

    Raises:
        SetupError: a resolution failed.
    """
    uv = Uv(root)
    uv.prepare()
    for name in _OPTIONS:
        say(f"resolving {name}.in")
        resolve_lock(uv, root, name, locks_folder(root) / f"{name}.txt", upgrade=upgrade)


def resolve_lock(uv: Uv, root: Path, name: str, output: Path, *, upgrade: bool = False) -> None:
    """Resolve one ``.in`` file; versions that ``output`` has stay, unless ``upgrade`` is asked for.

    Only the main index counts: a mirror with some of a version's files would make a lock with some of its
    hashes.

    Raises:
        SetupError: the resolution failed.
    """
    platform = _GPU if name == "serve-gpu" else _CPU
    options = [*f"{platform} {_COMMON} {_OPTIONS[name]}".split(), *(["--upgrade"] if upgrade else [])]
    folder = locks_folder(root)
    # The path is in the comments of the lock.
    path = output.name if output.parent == folder else str(output)
    uv.run("pip", "compile", f"{name}.in", "--output-file", path, *options, folder=folder)
