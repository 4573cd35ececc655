"""The settings of recognisers whose networks run on torch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from parley.asr.device.loading import PRECISIONS, DeviceSettings, choose_device
from parley.asr.device.streaming import ROW_SIZES
from parley.errors import ModelLoadingError
from parley.runtime.batching import parse_sizes
from parley.runtime.gpu_loading import loading_on_gpu
from parley.runtime.parameters import Parameters


def device_settings(parameters: Parameters, device_id: int) -> DeviceSettings:
    """Where and how networks run.

    Parameters of the model:
        ``device``: ``cpu`` or ``gpu``.
        ``threads``: of an operation on a CPU.
        ``precision``: of the encoder, ``float32``, ``bfloat16`` or ``float16``.
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
    return DeviceSettings(
        choose_device(kind, device_id),
        PRECISIONS[parameters.choice("precision", "float32", tuple(PRECISIONS))],
        parse_sizes(parameters.text("row_buckets", ""), "row_buckets") or ROW_SIZES,
        graphs,
    )


def loading(settings: DeviceSettings) -> AbstractContextManager[None]:
    """The right to take memory of the device, which models that measure the GPU need alone."""
    return loading_on_gpu(alone=False) if settings.device.type == "cuda" else nullcontext()
