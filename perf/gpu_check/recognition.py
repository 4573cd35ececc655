"""What recognition needs on a GPU: the kernel, log-mel features, and encoders of the real size in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpu_check.findings import Findings, Settings, SkippedError
from gpu_check.timing import forget_memory, memory_mib, once, seconds
from parley.asr.checkpoint import ParakeetConfig
from parley.asr.decoding.topk import top_k
from parley.asr.decoding.topk_torch import plain_top_k
from parley.asr.features.log_mel import LogMel

_ROWS = (4, 64, 512)
_CLASSES = 1_030
_STREAMS = (1, 8, 32, 64, 128)
_UTTERANCES = (1, 4, 16, 32)
_LEFT = 70
"""Encoder frames of 80 ms that a stream keeps."""


def check_kernels(settings: Settings, findings: Findings) -> None:
    """The fused log-softmax and top-k, and log-mel features in torch, against numpy."""
    from parley.asr.decoding.topk_triton import top_k as fused  # noqa: PLC0415 - needs Triton's language

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
    from parley.asr.features.log_mel_torch import TorchLogMel  # noqa: PLC0415 - needs torch

    config = ParakeetConfig()
    audio = (0.1 * np.random.default_rng(1).standard_normal((64, 32_000))).astype(np.float32)
    plain, on_device = LogMel(config), TorchLogMel(config, str(settings.device))
    expected, found = plain.frames(audio[:4]), on_device.frames(audio[:4])
    error = float(np.abs(expected - found).max())
    findings.check("log-mel features in torch", error < 1e-3, f"largest difference {error:.1g}")
    for name, log_mel in (("numpy", plain), ("torch", on_device)):
        taken = seconds(lambda: log_mel.frames(audio), settings.device, rounds=5)  # noqa: B023
        findings.measure(f"log-mel of 64 x 2 s, {name}, with both copies", 1_000 * taken, "ms")


@dataclass(frozen=True)
class _Encoder:
    """A network of transformers with random weights."""

    network: Any
    device: torch.device
    kind: torch.dtype
    bands: int

    def features(self, rows: int, frames: int) -> torch.Tensor:
        return torch.randn(rows, frames, self.bands, device=self.device, dtype=self.kind)


def check_parakeet(settings: Settings, findings: Findings) -> None:
    """The encoder of Parakeet TDT 0.6B over whole utterances."""
    try:
        from transformers import ParakeetEncoder, ParakeetEncoderConfig  # noqa: PLC0415
    except ImportError as error:
        raise SkippedError(f"transformers has no Parakeet: {error}") from error

    config = ParakeetEncoderConfig(**encoder_sizes(small=settings.small), subsampling_factor=8)
    for kind in _kinds(settings):
        forget_memory(settings.device)
        encoder = _build(settings, ParakeetEncoder, config, kind)
        name = str(kind).removeprefix("torch.")
        if kind is torch.float32:
            count = sum(p.numel() for p in encoder.network.parameters())
            findings.measure("parameters of the encoder", count / 1e6, "million")
        for seconds_long in (4, 16):
            for rows in _UTTERANCES[:2] if settings.small else _UTTERANCES:
                if settings.seconds_left <= 0:
                    findings.skipped = "no time left"
                    return
                features = encoder.features(rows, 100 * seconds_long)
                run = _inference(lambda: encoder.network(features).last_hidden_state)  # noqa: B023
                label = f"{name}, {rows} x {seconds_long} s"
                _measure(settings, findings, label, run, audio_s=rows * seconds_long)
        findings.measure(f"{name}: memory", memory_mib(settings.device), "MiB")


def check_nemotron(settings: Settings, findings: Findings) -> None:
    """One step of 160 ms of the streaming encoder for many streams, whose caches are full."""
    try:
        from transformers import (  # noqa: PLC0415
            NemotronAsrStreamingEncoder,
            NemotronAsrStreamingEncoderConfig,
        )
    except ImportError as error:
        raise SkippedError(f"transformers has no Nemotron: {error}") from error

    config = NemotronAsrStreamingEncoderConfig(
        **encoder_sizes(small=settings.small), sliding_window=_LEFT + 1
    )
    for kind in _kinds(settings):
        forget_memory(settings.device)
        encoder = _build(settings, NemotronAsrStreamingEncoder, config, kind)
        name = str(kind).removeprefix("torch.")
        for rows in _STREAMS[:2] if settings.small else _STREAMS:
            if settings.seconds_left <= 0:
                findings.skipped = "no time left"
                return
            run = _streaming_step(encoder, rows)
            _measure(settings, findings, f"{name}, {rows} streams", run, audio_s=0.16 * rows)
        findings.measure(f"{name}: memory", memory_mib(settings.device), "MiB")


def _streaming_step(encoder: _Encoder, rows: int) -> Callable[[], torch.Tensor]:
    """A step with the keys and values of the 70 frames before it."""
    features = encoder.features(rows, 16)
    before = encoder.network(
        encoder.features(rows, 8 * _LEFT), use_cache=True, num_lookahead_tokens=1, output_attention_mask=False
    )
    known = [(layer.keys.clone(), layer.values.clone()) for layer in before.past_key_values.layers]
    seen = [layer.cumulative_length for layer in before.past_key_values.layers]
    convolutions = [(layer, layer.cache.clone()) for layer in before.padding_cache.layers.values()]

    def run() -> torch.Tensor:
        for convolution, frames in convolutions:
            convolution.cache.copy_(frames)
        for layer, (keys, values), length in zip(before.past_key_values.layers, known, seen, strict=True):
            layer.keys, layer.values, layer.cumulative_length = keys, values, length
        out: torch.Tensor = encoder.network(
            features,
            use_cache=True,
            past_key_values=before.past_key_values,
            padding_cache=before.padding_cache,
            num_lookahead_tokens=1,
            output_attention_mask=False,
        ).last_hidden_state
        return out

    return _inference(run)


def _inference(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def without_gradients() -> torch.Tensor:
        with torch.inference_mode():
            return run()

    return without_gradients


def _measure(
    settings: Settings, findings: Findings, label: str, run: Callable[[], torch.Tensor], *, audio_s: float
) -> None:
    findings.measure(f"{label}, first", once(run, settings.device), "s")
    plain = seconds(run, settings.device)
    findings.measure(f"{label}, operation by operation", 1_000 * plain, "ms")
    expected = run()
    if not bool(torch.isfinite(expected).all()):
        findings.check(f"{label}: finite", passed=False)
    if settings.device.type != "cuda":
        findings.measure(f"{label}: seconds of audio in a second", audio_s / plain, "")
        return
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            result = run()
    except Exception as error:  # noqa: BLE001 - said in the findings
        findings.check(f"{label}: can be captured", passed=False, detail=str(error).splitlines()[0][:120])
        torch.cuda.synchronize()
        return
    taken = seconds(graph.replay, settings.device)
    findings.measure(f"{label}, graph", 1_000 * taken, "ms")
    findings.measure(f"{label}: seconds of audio in a second", audio_s / taken, "")
    difference = float((result.float() - expected.float()).abs().max() / expected.float().abs().max())
    limit = 0.02 if result.dtype is torch.bfloat16 else 1e-3
    findings.check(f"{label}: a graph computes the same", difference < limit, f"{difference:.2g}")


def _kinds(settings: Settings) -> tuple[torch.dtype, ...]:
    return (torch.float32, torch.bfloat16) if settings.device.type == "cuda" else (torch.float32,)


def encoder_sizes(*, small: bool = False) -> dict[str, int]:
    """The encoder of both recognisers, as transformers names its sizes."""
    width = 64 if small else 1_024
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "subsampling_conv_channels": 256 // (1_024 // width),
        "num_mel_bins": 128,
    }


def _build(settings: Settings, kind_of_network: Any, config: Any, kind: torch.dtype) -> _Encoder:
    torch.manual_seed(0)
    config._attn_implementation = "sdpa"  # noqa: SLF001 - as transformers itself sets it
    with torch.device(settings.device):
        network = kind_of_network(config).eval().requires_grad_(False).to(kind)
    return _Encoder(network, settings.device, kind, config.num_mel_bins)
