"""Recognisers on a torch device, made of an export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.batch import RowDecoder, make_decoder
from parley.asr.features import LogMel
from parley.asr.streaming.encoder import StreamingExport, chosen_look_aheads
from parley.errors import ModelLoadingError
from parley.runtime.versions import check_gpus, check_torch
from parley_torch.asr.fastconformer import SUBSAMPLING, EncoderSizes, FastConformer
from parley_torch.asr.joint import DeviceJoint
from parley_torch.asr.offline import DeviceEncoder, DeviceGreedyRows, RunSizes
from parley_torch.asr.prompt import LanguagePrompt
from parley_torch.asr.recognizer import DeviceRecognizer
from parley_torch.asr.streaming import ROW_SIZES, StreamingDevice, StreamingNetworks
from parley_torch.asr.transducer import Transducer
from parley_torch.asr.weights import read_weights
from parley_torch.runtime.cuda_graphs import Capture, CudaCapture, Repetition


@dataclass(frozen=True)
class DeviceSettings:
    """Where and how networks run."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    """Of the encoder; decoding is in single precision."""
    row_sizes: tuple[int, ...] = ROW_SIZES
    """Rising numbers of rows to which steps are padded."""
    graphs: bool = False
    """Whether steps are CUDA graphs."""

    def capture(self) -> Capture:
        """What records a step."""
        return CudaCapture() if self.graphs else Repetition()


def choose_device(kind: str, device_id: int) -> torch.device:
    """The device ``cpu``, or ``gpu`` with a number, which is made the current one.

    Raises:
        ModelLoadingError: there is no such GPU.
        UnsupportedVersionError: PyTorch, the driver or the GPU is of a version that does not work.
    """
    if kind == "cpu":
        return torch.device("cpu")
    check_torch()
    check_gpus(device_id)
    if not torch.cuda.is_available() or device_id >= torch.cuda.device_count():
        raise ModelLoadingError(f"device is gpu, but torch finds no GPU {device_id}")
    torch.cuda.set_device(device_id)
    return torch.device("cuda", device_id)


def load_streaming(
    export: StreamingExport,
    look_aheads_ms: Sequence[int],
    settings: DeviceSettings,
    *,
    slots: int,
    audio: int,
    beam_size: int | None = None,
    capture: Capture | None = None,
) -> tuple[DeviceRecognizer, dict[int, int]]:
    """Load the weights and capture every size of a step. To be called by the thread that will serve.

    Args:
        export: the model; its weights are in ``model.safetensors``, or else in its ONNX files.
        look_aheads_ms: what clients may choose (milliseconds of audio); one network serves them all.
        settings: where and how it runs.
        slots: utterances at once.
        audio: samples that may come for an utterance in one step.
        beam_size: decode by beam search, on the host; None: greedily, on the device.
        capture: records a step; None: what ``settings`` say.

    Returns:
        The recogniser, and the feature frames of a chunk by look-ahead (milliseconds).

    Raises:
        ModelLoadingError: the weights are not usable.
        WeightsNotFoundError: the weights are missing.
    """
    common = export.checkpoint
    look_aheads = chosen_look_aheads(export, look_aheads_ms)
    chunks = {export.look_ahead_ms(frames): SUBSAMPLING * (frames + 1) for frames in look_aheads}
    left = export.streaming.cache_last_channel[1]
    if uneven := [frames for frames in look_aheads if left % (frames + 1)]:
        raise ModelLoadingError(f"{left} frames of the past are no whole chunks of {uneven[0] + 1}")
    weights = read_weights(common.folder, export.encoder(export.streaming.look_aheads[0]), common.decoder)
    sizes = EncoderSizes.of(weights, bands=common.config.features_size, causal=True)
    transducer = Transducer.of(weights, common, settings.device)
    mel = LogMel(common.config)
    device = StreamingDevice(
        StreamingNetworks(
            FastConformer.of(weights, sizes, settings.dtype, settings.device),
            transducer,
            mel,
            common.config.max_tokens_per_step,
            LanguagePrompt.of(weights, common.config.prompts, sizes.width, settings.device),
        ),
        chunks=list(chunks.values()),
        rows=2 * slots,
        capture=capture or settings.capture(),
        left=left,
        sizes=settings.row_sizes,
        decodes=beam_size is None,
    )
    recognizer = DeviceRecognizer(
        device,
        mel,
        slots=slots,
        audio=audio,
        longest=max(chunks.values()),
        decoder=make_decoder(common, DeviceJoint(transducer), beam_size=beam_size),
        decodes=beam_size is None,
    )
    return recognizer, chunks


def load_encoder(
    export: Checkpoint, settings: DeviceSettings, sizes: RunSizes, *, capture: Capture | None = None
) -> DeviceEncoder:
    """Load an offline encoder and capture every size of a run; see :func:`load_streaming`.

    Raises:
        ModelLoadingError: the weights are not usable.
        WeightsNotFoundError: the weights are missing.
    """
    weights = read_weights(export.folder, export.encoder, export.decoder)
    network = EncoderSizes.of(weights, bands=export.config.features_size, causal=False)
    return DeviceEncoder(
        FastConformer.of(weights, network, settings.dtype, settings.device),
        sizes,
        capture or settings.capture(),
    )


def load_decoder(
    export: Checkpoint,
    settings: DeviceSettings,
    *,
    piece_frames: int,
    beam_size: int | None = None,
    capture: Capture | None = None,
) -> RowDecoder:
    """Load a decoder: greedy on the device, or a beam search on the host with networks on the device.

    Args:
        export: the model.
        settings: where it runs.
        piece_frames: encoder frames that are decoded at once.
        beam_size: hypotheses of a beam search; None: greedily.
        capture: records some steps of greedy decoding; None: what ``settings`` say.

    Raises:
        ModelLoadingError: the weights are not usable.
        WeightsNotFoundError: the weights are missing.
    """
    weights = read_weights(export.folder, None, export.decoder)
    network = Transducer.of(weights, export, settings.device)
    if beam_size is not None:
        return make_decoder(export, DeviceJoint(network), beam_size=beam_size)
    return DeviceGreedyRows(
        network,
        max_symbols=export.config.max_tokens_per_step,
        sizes=RunSizes((piece_frames,), settings.row_sizes, piece_frames * settings.row_sizes[-1]),
        capture=capture or settings.capture(),
    )
