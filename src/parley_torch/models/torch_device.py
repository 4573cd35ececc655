"""The settings of recognisers whose networks run on torch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from parley.errors import ModelLoadingError
from parley.runtime.batching import parse_sizes
from parley.runtime.gpu_loading import loading_on_gpu
from parley.runtime.parameters import Parameters
from parley_torch.asr.loading import DeviceSettings, choose_device
from parley_torch.asr.streaming import ROW_SIZES
from parley_torch.runtime.precision import PRECISIONS, choose_precision


def device_settings(parameters: Parameters, device_id: int) -> DeviceSettings:
    """Where and how networks run.

    Parameters of the model:
        ``device``: ``cpu`` or ``gpu``.
        ``threads``: of an operation on a CPU.
        ``precision``: of the encoder, ``float32``, ``bfloat16``, ``float16``, or ``auto``: bfloat16
            on a GPU that has it, float16 on another.
        ``row_buckets``: rising numbers of rows to which runs are padded.
        ``graphs``: ``true`` records runs as CUDA graphs when the model is loaded (default: on a GPU).

    Raises:
        ModelLoadingError: a setting is not usable, or there is no such GPU.
    """
    kind = parameters.choice("device", "cpu", ("cpu", "gpu"))
    graphs = parameters.boolean("graphs", default=kind == "gpu")
    if graphs and kind != "gpu":
        raise ModelLoadingError("graphs is true; device must be gpu")
    torch.set_num_threads(parameters.integer("threads", 1, minimum=1))
    device = choose_device(kind, device_id)
    return DeviceSettings(
        device,
        choose_precision(parameters, device, allowed=tuple(PRECISIONS), otherwise="float16"),
        parse_sizes(parameters.text("row_buckets", ""), "row_buckets") or ROW_SIZES,
        graphs,
    )


def loading(settings: DeviceSettings) -> AbstractContextManager[None]:
    """The right to take memory of the device, which models that measure the GPU need alone."""
    return loading_on_gpu(alone=False) if settings.device.type == "cuda" else nullcontext()
