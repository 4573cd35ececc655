"""Recognisers whose networks run on torch: their settings, and what loads them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from parley.asr import checkpoint
from parley.asr.checkpoint import DESCRIPTION
from parley.asr.decoding.batch import RowDecoder
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.errors import ModelLoadingError
from parley.models.nemotron_streaming import Engine
from parley.models.parakeet_decoder import beam_size
from parley.models.parakeet_encoder import EncoderBuckets, EncoderService
from parley.runtime.batching import parse_sizes
from parley.runtime.gpu_loading import loading_on_gpu
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights
from parley_torch.asr.loading import DeviceSettings, choose_device, load_decoder, load_encoder, load_streaming
from parley_torch.asr.offline import RunSizes
from parley_torch.asr.streaming import ROW_SIZES
from parley_torch.runtime.precision import PRECISIONS, choose_precision

_FRAME_SIZES = (200, 400, 800, 1400, 2000, 3000)
_MOST_FRAMES = 32_000
_PIECE_FRAMES = 256


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


def open_encoder(parameters: Parameters, device_id: int) -> EncoderService:
    """The service of ``parakeet_encoder``; see :func:`parley.models.parakeet_encoder.open_encoder`.

    Raises:
        ModelLoadingError: the weights or a setting are not usable.
    """
    export = checkpoint.load_description(parameters)
    settings = device_settings(parameters, device_id)
    sizes = RunSizes(
        EncoderBuckets.of(parameters).frames or _FRAME_SIZES,
        settings.row_sizes,
        parameters.integer("max_run_frames", _MOST_FRAMES, minimum=1),
    )
    with loading(settings):
        # It pads by itself.
        encoder = load_encoder(export, settings, sizes)
        return EncoderService(encoder, export.config.features_size, longest=sizes.frames[-1])


def open_decoder(parameters: Parameters, device_id: int) -> RowDecoder:
    """The decoder of ``parakeet_decoder``; see :func:`parley.models.parakeet_decoder.open_decoder`.

    Raises:
        ModelLoadingError: the weights or a setting are not usable.
    """
    export = checkpoint.load_description(parameters)
    settings = device_settings(parameters, device_id)
    with loading(settings):
        return load_decoder(
            export,
            settings,
            piece_frames=parameters.integer("piece_frames", _PIECE_FRAMES, minimum=1),
            beam_size=beam_size(parameters),
        )


def open_streaming(
    parameters: Parameters, device_id: int, *, look_aheads_ms: Sequence[int], slots: int, audio: int
) -> Engine:
    """The engine of ``nemotron_streaming``; see :class:`parley.models.nemotron_streaming.EngineOpener`.

    Raises:
        ModelLoadingError: the weights or a setting are not usable.
    """
    folder = resolve_weights(parameters, streaming_checkpoint.DEFAULT, DESCRIPTION)
    export = streaming_checkpoint.load(folder, DESCRIPTION)
    settings = device_settings(parameters, device_id)
    with loading(settings):
        recognizer, chunks = load_streaming(
            export,
            look_aheads_ms,
            settings,
            slots=slots,
            audio=audio,
            beam_size=beam_size(parameters),
        )
    return Engine(export.checkpoint, recognizer, chunks)
