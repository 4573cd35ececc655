"""What recognition needs on a GPU: the kernel, log-mel features, and Parley's networks at their real size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_check.findings import Findings, Settings, forget_memory, memory_mib, once, seconds
from parley.asr.checkpoint import ParakeetConfig
from parley.asr.decoding.topk import top_k
from parley.asr.features import LogMel
from parley_torch.asr.fastconformer import SUBSAMPLING, EncoderSizes, FastConformer
from parley_torch.asr.features import DeviceLogMel
from parley_torch.asr.memory import (
    NEMOTRON_DECODER,
    NEMOTRON_ENCODER,
    PARAKEET_DECODER,
    PARAKEET_ENCODER,
    RecognizerMemory,
    TransducerSizes,
    decoder_memory,
    encoder_memory,
    streaming_memory,
)
from parley_torch.asr.offline import DeviceEncoder, DeviceGreedyRows, RunSizes
from parley_torch.asr.streaming import LEFT, StreamChunks, StreamingDevice, StreamingNetworks
from parley_torch.asr.topk import plain_top_k
from parley_torch.asr.transducer import Transducer
from parley_torch.asr.weights import ENCODER
from parley_torch.runtime.cuda_graphs import Capture, Repetition

_ROWS = (4, 64, 512)
_CLASSES = 1_030
_STREAMS = (1, 8, 32, 64, 128)
_UTTERANCES = (1, 4, 16)
_SECONDS = (4, 16)
_CHUNK = 16
"""Feature frames: 160 ms."""
_FULL_AFTER = 2 * LEFT * SUBSAMPLING // _CHUNK
"""Steps until the caches have been full for as long as it took to fill them."""
_REFERENCE_STEPS = 6
_REFERENCE_LENGTHS = (400, 250)
"""Feature frames of two utterances."""
_FROM_CPU = {torch.float32: 1e-2, torch.bfloat16: 0.1}
"""Largest difference from a CPU in single precision, of the largest value."""
_MIB = 1 << 20


def check_kernels(settings: Settings, findings: Findings) -> None:
    """The fused log-softmax and top-k, and log-mel features in torch, against numpy."""
    from parley_torch.asr.topk_triton import top_k as fused  # noqa: PLC0415 - needs Triton's language

    rng = np.random.default_rng(0)
    for rows in _ROWS:
        scores = (10 * rng.standard_normal((rows, _CLASSES))).astype(np.float32)
        on_device = torch.from_numpy(scores).to(settings.device)
        values, ids = fused(on_device, 4)
        expected, expected_ids = top_k(scores, 4)
        error = float(np.abs(values.cpu().numpy() - expected).max())
        same = np.array_equal(ids.cpu().numpy(), expected_ids)
        findings.check(f"top-k of {rows} x {_CLASSES}", same and error < 1e-4, f"error {error:.1g}")
        if settings.device.type == "cuda":
            taken = seconds(lambda: fused(on_device, 4), settings.device, rounds=50)  # noqa: B023
            plain = seconds(lambda: plain_top_k(on_device, 4), settings.device, rounds=50)  # noqa: B023
            findings.measure(f"top-k of {rows} rows, fused kernel", 1e6 * taken, "µs")
            findings.measure(f"top-k of {rows} rows, plain torch", 1e6 * plain, "µs")
    _check_features(settings, findings)


def _check_features(settings: Settings, findings: Findings) -> None:
    mel = LogMel(ParakeetConfig())
    on_device = DeviceLogMel(mel, settings.device)
    frames = 200
    audio = _noise(64, mel.samples(frames))

    def found() -> Tensor:
        return on_device(*_whole(audio, frames, settings.device))

    samples = audio[:4].astype(np.float32) / np.float32(32_768)
    expected = mel.frames(samples[:, 1:] - mel.preemphasis * samples[:, :-1])
    error = float(np.abs(expected.transpose(0, 2, 1) - found()[:4].cpu().numpy()).max())
    findings.check("log-mel features in torch", error < 1e-3, f"largest difference {error:.1g}")
    taken = seconds(lambda: mel.frames(audio.astype(np.float32)), settings.device, rounds=5)
    findings.measure("log-mel of 64 x 2 s, numpy", 1_000 * taken, "ms")
    taken = seconds(found, settings.device, rounds=5)
    findings.measure("log-mel of 64 x 2 s, torch, with the copy of the audio", 1_000 * taken, "ms")


def check_nemotron(settings: Settings, findings: Findings) -> None:
    """Steps of 160 ms of many streams whose caches are full: features, encoder and greedy decoding."""
    sizes, decoder = _shrunk(settings, NEMOTRON_ENCODER, NEMOTRON_DECODER)
    streams = _STREAMS[:2] if settings.small else _STREAMS
    on_cpu = replace(settings, device=torch.device("cpu"))
    reference = StreamingDevice(
        _streaming_networks(on_cpu, sizes, decoder, torch.float32),
        chunks=[_CHUNK],
        rows=2 * streams[-1],
        capture=Repetition(),
        sizes=(4,),
    )
    for dtype in _dtypes(settings):
        forget_memory(settings.device)
        name = str(dtype).removeprefix("torch.")
        networks = _streaming_networks(settings, sizes, decoder, dtype)

        def device(capture: Capture) -> StreamingDevice:
            return StreamingDevice(
                networks,  # noqa: B023 - called at once
                chunks=[_CHUNK],
                rows=2 * streams[-1],
                capture=capture,
                sizes=streams,
            )

        graphs: list[StreamingDevice] = []
        taken = once(lambda: graphs.append(device(settings.capture())), settings.device)  # noqa: B023
        findings.measure(f"{name}: load, with {len(streams)} sizes", taken, "s")
        steps = 3 if settings.small else _FULL_AFTER
        limit = 0.02 if dtype is torch.bfloat16 else 1e-3
        _compare_steps(
            findings, f"{name}, with and without graphs", (graphs[0], device(Repetition())), steps, limit
        )
        of_cpu = f"{name}, against a CPU"
        _compare_steps(findings, of_cpu, (graphs[0], reference), _REFERENCE_STEPS, _FROM_CPU[dtype])
        forget_memory(settings.device)
        for rows in streams:
            if settings.seconds_left <= 0:
                findings.skipped = "no time left"
                return
            step = _step(rows)

            def run() -> object:
                return graphs[0].run(_CHUNK, step)  # noqa: B023 - called at once

            taken = seconds(run, settings.device)
            findings.measure(f"{name}, {rows} streams", 1_000 * taken, "ms")
            audio_s = rows * _CHUNK / 100
            findings.measure(f"{name}, {rows} streams: seconds of audio in a second", audio_s / taken, "")
        computed = streaming_memory(
            sizes,
            decoder,
            chunks=[_CHUNK],
            slots=streams[-1],
            left=LEFT,
            row_sizes=streams,
            dtype=dtype,
        )
        _compare_memory(settings, findings, name, computed)


def _compare_steps(
    findings: Findings,
    name: str,
    devices: tuple[StreamingDevice, StreamingDevice],
    steps: int,
    limit: float,
) -> None:
    """Both get the same audio; their encoded frames may differ by so much, of the largest value."""
    difference = 0.0
    same = True
    for index in range(steps):
        step = _step(4, index)
        if index == 0:
            # Preparing the sizes has left traces in rows that no stream has yet.
            step = replace(step, sources=np.full(4, devices[0].initial_row))
        outputs = (device.run(_CHUNK, step, encoded=True) for device in devices)
        for own, other in zip(*outputs, strict=True):
            if isinstance(own, Exception) or isinstance(other, Exception):
                findings.check(f"{name}: finite", passed=False, detail=str(own))
                return
            difference = max(difference, largest_difference(own.encoded, other.encoded))
            same = same and own.tokens.ids.tolist() == other.tokens.ids.tolist()
    findings.check(f"{name}: encoded frames", difference < limit, f"{difference:.2g} < {limit:g}")
    findings.measure(f"{name}: all tokens are the same", float(same), "")


def largest_difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Of the largest expected value; infinite if a value is not finite or the shapes differ."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _encode_reference(encoder: DeviceEncoder, bands: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The frames of two utterances that share a run, without their padding; ``[n, width]`` each."""
    longest = max(_REFERENCE_LENGTHS)
    features = np.random.default_rng(1).standard_normal((len(_REFERENCE_LENGTHS), bands, longest))
    encoded, counts = encoder.encode(features.astype(np.float32), np.array(_REFERENCE_LENGTHS))
    first, second = (frames[:, :count].T for frames, count in zip(encoded, counts, strict=True))
    return first, second


def check_parakeet(settings: Settings, findings: Findings) -> None:
    """Whole utterances: features to encoded frames, and these to tokens."""
    sizes, decoder = _shrunk(settings, PARAKEET_ENCODER, PARAKEET_DECODER)
    utterances = _UTTERANCES[:2] if settings.small else _UTTERANCES
    frames = tuple(100 * length for length in _SECONDS)
    runs = RunSizes(frames, utterances, frames[-1] * utterances[-1])
    pieces = RunSizes((frames[-1] // SUBSAMPLING + 1,), utterances, 1 << 30)
    weights = _random_weights(sizes, decoder)
    on_cpu = DeviceEncoder(
        FastConformer.of(weights, sizes, torch.float32, torch.device("cpu")),
        RunSizes((max(_REFERENCE_LENGTHS),), (len(_REFERENCE_LENGTHS),), 1 << 30),
        Repetition(),
    )
    expected = _encode_reference(on_cpu, sizes.bands)
    for dtype in _dtypes(settings):
        forget_memory(settings.device)
        name = str(dtype).removeprefix("torch.")
        network = FastConformer.of(weights, sizes, dtype, settings.device)
        if dtype is torch.float32:
            count = sum(parameter.numel() for parameter in network.parameters())
            findings.measure("parameters of the encoder", count / 1e6, "million")
        encoder = DeviceEncoder(network, runs, settings.capture())
        found = _encode_reference(encoder, sizes.bands)
        difference = max(largest_difference(*pair) for pair in zip(found, expected, strict=True))
        limit = _FROM_CPU[dtype]
        findings.check(
            f"{name}, against a CPU: encoded frames", difference < limit, f"{difference:.2g} < {limit:g}"
        )
        rows_of = DeviceGreedyRows(
            Transducer(
                weights, blank=decoder.tokens, durations=range(decoder.durations), device=settings.device
            ),
            max_symbols=10,
            sizes=pieces,
            capture=settings.capture(),
        )
        for length in _SECONDS:
            for rows in utterances:
                if settings.seconds_left <= 0:
                    findings.skipped = "no time left"
                    return
                networks = network, encoder, rows_of
                _measure_utterances(
                    settings, findings, f"{name}, {rows} x {length} s", networks, (rows, length)
                )
        parts = encoder_memory(sizes, runs, dtype=dtype), decoder_memory(decoder, pieces)
        _compare_memory(settings, findings, name, *parts)


def _measure_utterances(
    settings: Settings,
    findings: Findings,
    label: str,
    networks: tuple[FastConformer, DeviceEncoder, DeviceGreedyRows],
    shape: tuple[int, int],
) -> None:
    (network, encoder, decoder), (rows, length) = networks, shape
    features = (
        np.random.default_rng(0).standard_normal((rows, network.sizes.bands, 100 * length)).astype(np.float32)
    )
    lengths = np.full(rows, 100 * length)
    encoded, counts = encoder.encode(features, lengths)
    findings.check(f"{label}: finite", bool(np.isfinite(encoded).all()))
    encoding = seconds(lambda: encoder.encode(features, lengths), settings.device)
    findings.measure(f"{label}, encoder", 1_000 * encoding, "ms")
    findings.measure(f"{label}: seconds of audio in a second", rows * length / encoding, "")
    state = decoder.initial(rows)
    decoding = seconds(lambda: decoder.decode(encoded, counts, state, None), settings.device)
    findings.measure(f"{label}, greedy decoding", 1_000 * decoding, "ms")


def _compare_memory(settings: Settings, findings: Findings, name: str, *parts: RecognizerMemory) -> None:
    computed = sum(part.total for part in parts) / _MIB
    findings.measure(f"{name}: memory as computed", computed, "MiB")
    measured = memory_mib(settings.device)
    findings.measure(f"{name}: memory", measured, "MiB")
    if settings.device.type == "cuda":
        fits = measured < 1.1 * computed
        findings.check(f"{name}: memory is not above what was computed", fits, f"{measured:.0f} MiB")


def _step(rows: int, seed: int = 0) -> StreamChunks:
    """A chunk of noise of some streams, in rows of their own."""
    audio = _noise(rows, LogMel(ParakeetConfig()).samples(_CHUNK), seed)
    every = np.arange(rows)
    return StreamChunks(audio, np.full(rows, audio.shape[1]), np.full(rows, _CHUNK), every, every, every * 0)


def _noise(rows: int, samples: int, seed: int = 0) -> NDArray[np.int16]:
    rng = np.random.default_rng(seed)
    return (3_000 * rng.standard_normal((rows, samples))).clip(-32_768, 32_767).astype(np.int16)


def _whole(audio: NDArray[np.int16], frames: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    rows, samples = audio.shape
    return (
        torch.from_numpy(audio).to(device),
        torch.full((rows,), samples, device=device),
        torch.full((rows,), frames, device=device),
    )


def _dtypes(settings: Settings) -> tuple[torch.dtype, ...]:
    return (torch.float32, torch.bfloat16) if settings.device.type == "cuda" else (torch.float32,)


def _shrunk(
    settings: Settings, encoder: EncoderSizes, decoder: TransducerSizes
) -> tuple[EncoderSizes, TransducerSizes]:
    """The published sizes; without a GPU narrow ones of as many layers."""
    if not settings.small:
        return encoder, decoder
    return (
        replace(encoder, width=64, inner=256, channels=16),
        replace(decoder, width=32, joint=32, inputs=64),
    )


def _streaming_networks(
    settings: Settings, sizes: EncoderSizes, decoder: TransducerSizes, dtype: torch.dtype
) -> StreamingNetworks:
    weights = _random_weights(sizes, decoder)
    return StreamingNetworks(
        FastConformer.of(weights, sizes, dtype, settings.device),
        Transducer(weights, blank=decoder.tokens, durations=(), device=settings.device),
        LogMel(ParakeetConfig(features_size=sizes.bands, normalize="NA")),
        10,
    )


def _random_weights(encoder: EncoderSizes, decoder: TransducerSizes) -> Mapping[str, Tensor]:
    """As torch initialises networks."""
    torch.manual_seed(0)
    weights = {f"{ENCODER}{name}": tensor for name, tensor in FastConformer(encoder).state_dict().items()}
    width, classes = decoder.width, decoder.tokens + 1 + decoder.durations
    lstm = torch.nn.LSTM(width, width, decoder.layers)
    weights |= {f"decoder.prediction.dec_rnn.lstm.{name}": own for name, own in lstm.state_dict().items()}
    weights["decoder.prediction.embed.weight"] = torch.randn(decoder.tokens + 1, width)
    for name, inputs, outputs in (
        ("enc", decoder.inputs, decoder.joint),
        ("pred", width, decoder.joint),
        ("joint_net.2", decoder.joint, classes),
    ):
        linear = torch.nn.Linear(inputs, outputs)
        weights |= {f"joint.{name}.{own}": tensor.detach() for own, tensor in linear.state_dict().items()}
    return weights
