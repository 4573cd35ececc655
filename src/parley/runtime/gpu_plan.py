"""Memory plans: how the models of the profile gpu share one GPU, by the class of the GPU.

The plans are ``gpu_plans.toml`` beside this file. Launcher, models and the Helm chart read the same.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from parley.errors import ModelLoadingError, NotInProfileError
from parley.runtime import gpu_memory

PLANS_FILE = Path(__file__).with_name("gpu_plans.toml")
GPU_PROFILE = "gpu"
"""The profile whose configurations are each model's ``config.pbtxt``."""
GPU_CLASS_VARIABLE = "PARLEY_GPU_CLASS"
"""Name of a class, ``auto`` (the default) or ``none``."""
PLAN_SETTING = "memory_plan"
"""The parameter of a model's configuration that makes its settings follow the plan."""
BFLOAT16_CAPABILITY = (8, 0)
"""Of the first GPUs with bfloat16, as CUDA counts them."""
_AUTO = "auto"
_NONE = "none"
_GIB = 1 << 30


class NotPlannedError(NotInProfileError):
    """The memory plan of this machine's GPU has no memory for a model."""


@dataclass(frozen=True)
class GpuPlan:
    """How the memory of one class of GPUs is divided."""

    gpus: tuple[str, ...]
    """Names of the class; the first one is its own."""
    memory_gib: float
    """What CUDA offers, at least."""
    float32_gib: float
    """The same of a GPU without bfloat16, whose S3Gen is in float32."""
    without: frozenset[str]
    """Models for which there is no memory."""
    settings: Mapping[str, Mapping[str, str]]
    """By model and name, in the form of a model's parameters."""

    @property
    def name(self) -> str:
        """Of the class."""
        return self.gpus[0]

    def fits(self, gpu: Gpu) -> bool:
        """Whether a GPU holds it."""
        needed = self.memory_gib if gpu.has_bfloat16 else self.float32_gib
        return needed * _GIB <= gpu.total_bytes


@dataclass(frozen=True)
class Gpu:
    """The GPU that the models of this process use."""

    name: str
    total_bytes: int
    has_bfloat16: bool = True


@cache
def read_plans() -> tuple[GpuPlan, ...]:
    """All plans, the smallest GPU first."""
    plans = [_read(plan) for plan in tomllib.loads(PLANS_FILE.read_text(encoding="utf-8"))["plan"]]
    return tuple(sorted(plans, key=lambda plan: plan.memory_gib))


def find_plan(environment: Mapping[str, str] = os.environ) -> GpuPlan | None:
    """The plan that ``PARLEY_GPU_CLASS`` names, or else the largest that the GPU holds.

    None: it is ``none``, or no GPU was found.

    Raises:
        ModelLoadingError: there is no such class, or the GPU has less memory than every plan needs.
    """
    named = environment.get(GPU_CLASS_VARIABLE) or _AUTO
    if named == _NONE:
        return None
    if named == _AUTO:
        gpu = find_gpu(environment)
        return None if gpu is None else choose_plan(gpu)
    found = next((plan for plan in read_plans() if named in plan.gpus), None)
    if found is None:
        known = ", ".join(name for plan in read_plans() for name in plan.gpus)
        raise ModelLoadingError(
            f"{GPU_CLASS_VARIABLE} is {named!r}; it must be one of {known}, {_AUTO} or {_NONE}"
        )
    return found


def choose_plan(gpu: Gpu) -> GpuPlan:
    """The largest plan that a GPU holds.

    Raises:
        ModelLoadingError: it has less memory than every plan needs.
    """
    held = [plan for plan in read_plans() if plan.fits(gpu)]
    if not held:
        least = read_plans()[0]
        raise ModelLoadingError(
            f"the GPU {gpu.name} has {gpu.total_bytes / _GIB:.1f} GiB; the smallest memory plan is that of "
            f"{least.name}, for {least.memory_gib:g} GiB. {GPU_CLASS_VARIABLE}={_NONE} runs the models "
            "without a plan"
        )
    return held[-1]


def planned_settings(model: str, environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """A model's settings in the plan of this machine's GPU.

    Raises:
        NotPlannedError: the plan has no memory for the model.
        ModelLoadingError: there is no such class.
    """
    plan = find_plan(environment)
    if plan is None:
        return {}
    if model in plan.without:
        raise NotPlannedError(
            f"a GPU of the class {plan.name} has no memory for {model} beside the other models; "
            f"{GPU_CLASS_VARIABLE}={_NONE} loads it nevertheless"
        )
    return plan.settings.get(model, {})


def find_gpu(environment: Mapping[str, str] = os.environ) -> Gpu | None:
    """The GPU that CUDA's first device is; None: NVML is not installed, or there is no driver.

    Raises:
        ModelLoadingError: CUDA's first device is a slice of a GPU (MIG), whose size NVML does not give for
            what ``CUDA_VISIBLE_DEVICES`` names.
    """
    nvml = gpu_memory.open_nvml()
    if nvml is None:
        return None
    first = environment.get(gpu_memory.VISIBLE_VARIABLE, "0").split(",")[0].strip()
    if first.startswith("MIG-"):
        raise ModelLoadingError(
            f"CUDA_VISIBLE_DEVICES names {first}, a part of a GPU; name the class whose memory it has in "
            f"{GPU_CLASS_VARIABLE}"
        )
    try:
        device = gpu_memory.find_device(nvml, 0, environment)
        if device is None:
            return None
        if _is_divided(nvml, device):
            raise ModelLoadingError(
                f"GPU {first} is divided (MIG), and CUDA offers a part of it; name the class whose memory "
                f"that part has in {GPU_CLASS_VARIABLE}"
            )
        memory, name = nvml.nvmlDeviceGetMemoryInfo(device), nvml.nvmlDeviceGetName(device)
        capability = gpu_memory.read_capability(nvml, device)
    except nvml.NVMLError:
        return None
    return Gpu(name, memory.total, capability >= BFLOAT16_CAPABILITY)


def _is_divided(nvml: Any, device: Any) -> bool:
    """Whether CUDA offers slices of a GPU only; its memory by NVML is that of the whole."""
    try:
        mode, _ = nvml.nvmlDeviceGetMigMode(device)
    except nvml.NVMLError:  # of a kind that cannot be divided
        return False
    return bool(mode == nvml.NVML_DEVICE_MIG_ENABLE)


def _read(plan: Mapping[str, Any]) -> GpuPlan:
    settings = {
        model: {name: str(value) for name, value in values.items()}
        for model, values in plan["settings"].items()
    }
    sizes = float(plan["memory_gib"]), float(plan["float32_gib"])
    return GpuPlan(tuple(plan["gpus"]), *sizes, frozenset(plan["without"]), settings)
