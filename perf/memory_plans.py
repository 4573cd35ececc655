"""Adds up what each memory plan of the gpu profile needs: ``python -m perf memory-plans``.

Parameters follow from published shapes; S3Gen's networks are built at their sizes, without memory (PyTorch's
device ``meta``). Caches follow from shapes and from the settings that a model reads with the plan.
Contexts and workspaces are the constants below: that of S3Gen was measured
(docs/measurements.md), the others are allowances.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from gpu_check.language import T3_WIDTH, t3_shapes
from gpu_check.synthesis import random_networks

from parley.launcher.models import read_config
from parley.launcher.options import GPU_PROFILE
from parley.runtime.batching import parse_sizes
from parley.runtime.gpu_plan import GpuPlan, read_plans
from parley.runtime.parameters import Parameters
from parley_torch.asr.memory import (
    NEMOTRON_35_DECODER,
    NEMOTRON_35_PROMPT,
    NEMOTRON_ENCODER,
    PARAKEET_DECODER,
    PARAKEET_ENCODER,
    RecognizerMemory,
    decoder_memory,
    encoder_memory,
    streaming_memory,
)
from parley_torch.asr.offline import RunSizes
from parley_torch.asr.streaming import LEFT
from parley_torch.models.s3gen import s3gen_sizes
from parley_torch.runtime.precision import AUTO_PRECISION, PRECISIONS
from parley_torch.tts.s3gen.checkpoint import Networks
from parley_torch.tts.s3gen.state import Past
from parley_torch.tts.s3gen.vocoder import HOP
from parley_torch.tts.s3gen.window_graphs import VocoderSizes

REPOSITORY = Path(__file__).parents[1] / "model_repository"
SPARE = 0.05
"""Of a GPU's memory, which no plan may use."""
_GIB = 1 << 30
_MB = 1e6

_CONTEXT = 450 * _MB
"""CUDA's context and the kernels of the libraries, of each process."""
_WORKSPACES = {
    "nemotron_streaming": 300 * _MB,
    "parakeet_encoder": 300 * _MB,
    "parakeet_decoder": 100 * _MB,
    "qwen3": 1_200 * _MB,
    "t3": 800 * _MB,
    "s3gen": 1_400 * _MB,
}
"""Activations, graphs and what allocators hold in reserve; of recognisers graphs and the reserve.

Of S3Gen, without the graphs of its vocoder, which were not yet when it was measured.
"""
_QWEN3_AWQ = 2.666e9
"""Qwen3-4B: four bits for each weight of a layer, a scale and a zero for 128 of them; two bytes elsewhere."""
_VOCODER_FRAME = 256_650
"""Tensors that a run of the vocoder holds at once, for each row and frame; the pitch predictor has less."""
_VOCODER_GRAPH = 8 * _MB
"""What CUDA keeps of a graph of the vocoder's 600 operations; an allowance."""
_PITCH_GRAPH = 1 * _MB
"""The same of its pitch predictor, which has some 20 operations; an allowance."""
_HALF = 2
_SINGLE = 4
_DOUBLE = 8
_FRAME_MS = 10


@dataclass(frozen=True)
class Need:
    """Bytes of one model."""

    contexts: float
    weights: float
    caches: float
    workspace: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.contexts + self.weights + self.caches + self.workspace


def read_settings(model: str, plan: GpuPlan) -> Parameters:
    """The settings that a model reads on a GPU of the plan's class."""
    config = read_config(REPOSITORY / model, GPU_PROFILE)
    values = {name: value.string_value for name, value in config.parameters.items()}
    return Parameters(model, {**values, **plan.settings.get(model, {})}, environment={})


def count_sessions(plan: GpuPlan) -> int:
    """Sessions of all instances of the agent."""
    config = read_config(REPOSITORY / "voice_agent", GPU_PROFILE)
    return len(config.instance_group) * read_settings("voice_agent", plan).integer("max_sessions", 16)


def needs(plan: GpuPlan, *, has_bfloat16: bool = True) -> dict[str, Need]:
    """What each model of a plan needs on its GPU, which may have no bfloat16."""
    found = {
        "nemotron_streaming": _recognizer(_nemotron(plan), "nemotron_streaming"),
        "parakeet_encoder": _recognizer(_parakeet_encoder(plan), "parakeet_encoder"),
        "parakeet_decoder": _recognizer(_parakeet_decoder(plan), "parakeet_decoder"),
        "qwen3": Need(_CONTEXT, _QWEN3_AWQ, _cache("qwen3", plan), 0),
        "t3": Need(_t3_contexts(plan), _HALF * _t3(), _cache("t3", plan), 0),
        "s3gen": _s3gen(plan, has_bfloat16=has_bfloat16),
    }
    return {
        model: Need(need.contexts, need.weights, need.caches, need.workspace or _WORKSPACES[model])
        for model, need in found.items()
        if model not in plan.without
    }


def _cache(model: str, plan: GpuPlan) -> float:
    return read_settings(model, plan).number("kv_cache_gib", 0) * _GIB


def _t3_contexts(plan: GpuPlan) -> float:
    """Its engine's, and one more where prompts are computed on the GPU, in the model's own process."""
    return _CONTEXT * (2 if read_settings("t3", plan).text("prompt_device", "") == "cuda" else 1)


@cache
def _on_meta(build: Callable[[], Any]) -> Any:
    with torch.device("meta"):
        return build()


def _recognizer(memory: RecognizerMemory, model: str) -> Need:
    return Need(_CONTEXT, memory.weights, memory.pool, memory.workspace + _WORKSPACES[model])


def _encoder_dtype(settings: Parameters) -> torch.dtype:
    """On a GPU; the float16 of one without bfloat16 takes as much."""
    named = settings.text("precision", "")
    return torch.bfloat16 if named == AUTO_PRECISION else PRECISIONS[named]


def _nemotron(plan: GpuPlan) -> RecognizerMemory:
    """Of Nemotron 3.5, whose vocabulary and language prompt the English model lacks: a plan holds either."""
    settings = read_settings("nemotron_streaming", plan)
    look_aheads = settings.text("lookaheads_ms", "").split(",")
    return streaming_memory(
        NEMOTRON_ENCODER,
        NEMOTRON_35_DECODER,
        chunks=[int(milliseconds) // _FRAME_MS for milliseconds in look_aheads],
        slots=2 * settings.integer("max_sessions", 0),
        left=LEFT,
        row_sizes=parse_sizes(settings.text("row_buckets", ""), "row_buckets"),
        dtype=_encoder_dtype(settings),
        prompt=NEMOTRON_35_PROMPT,
    )


def _parakeet_encoder(plan: GpuPlan) -> RecognizerMemory:
    settings = read_settings("parakeet_encoder", plan)
    frames, rows = (parse_sizes(settings.text(name, ""), name) for name in ("frame_buckets", "row_buckets"))
    runs = RunSizes(frames, rows, settings.integer("max_run_frames", 0))
    return encoder_memory(PARAKEET_ENCODER, runs, dtype=_encoder_dtype(settings))


def _parakeet_decoder(plan: GpuPlan) -> RecognizerMemory:
    settings = read_settings("parakeet_decoder", plan)
    rows, frames = (
        parse_sizes(settings.text("row_buckets", ""), "row_buckets"),
        settings.integer("piece_frames", 0),
    )
    return decoder_memory(PARAKEET_DECODER, RunSizes((frames,), rows, rows[-1] * frames))


def _t3() -> int:
    return sum(math.prod(shape) for _, shape in t3_shapes(T3_WIDTH))


def _size(past: Past) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in past.tensors))


def _s3gen(plan: GpuPlan, *, has_bfloat16: bool = True) -> Need:
    """With the distilled checkpoint, which keeps the past of every utterance and voice."""
    networks: Networks = _on_meta(_build_s3gen if has_bfloat16 else _build_s3gen_in_float32)
    sizes = s3gen_sizes(read_settings("s3gen", plan))
    empty = networks.flow.empty_past(2)
    parts = (networks.flow, networks.vocoder)
    weights = sum(p.numel() * p.element_size() for part in parts for p in part.parameters())
    utterance = empty.blank(sizes.max_tokens).cut(2 * sizes.past_tokens)
    voice = empty.blank(sizes.max_prompt)
    # One set of memory for the pasts of the largest batch, with room for its new frames.
    batch = empty.blank(sizes.largest_past[0] + sizes.largest_frames // 2)
    batch = batch.cut(sizes.largest_past[1] + sizes.largest_frames)
    caches = sizes.max_utterances * _size(utterance) + sizes.voices * _size(voice) + sizes.rows * _size(batch)
    return Need(_CONTEXT, weights, caches, _WORKSPACES["s3gen"] + vocoder_graphs(sizes.vocoder))


def vocoder_graphs(sizes: VocoderSizes) -> float:
    """Bytes of the graphs of vocoder and pitch predictor: they share what the largest batch holds."""
    batches, of_pitch = sizes.waveform.batches(), sizes.pitch.batches()
    largest, frames = batches[0]
    results = sum(rows * length for rows, length in batches) * HOP * _SINGLE
    results += sum(rows * length for rows, length in of_pitch) * _DOUBLE
    graphs = len(batches) * _VOCODER_GRAPH + len(of_pitch) * _PITCH_GRAPH
    return _VOCODER_FRAME * largest * frames + results + graphs


def _build_s3gen_in_float32() -> Networks:
    return random_networks(1)


def _build_s3gen() -> Networks:
    networks = random_networks(1)
    networks.flow.decoder.estimator.to(torch.bfloat16)
    return networks


def main() -> int:
    """Print the table; 1 if a plan does not fit."""
    fits = True
    for plan in read_plans():
        parts = needs(plan)
        total = sum(need.total for need in parts.values())
        usable = (1 - SPARE) * plan.memory_gib * _GIB
        fits = fits and total <= usable
        print(
            f"{', '.join(plan.gpus)}: {count_sessions(plan)} sessions, "
            f"{total / 1e9:.1f} of {usable / 1e9:.1f} GB"
        )
        print("  | model | context | weights | caches | workspace | GB |\n  |---|---|---|---|---|---|")
        for model, need in parts.items():
            columns = (need.contexts, need.weights, need.caches, need.workspace, need.total)
            print(f"  | {model} | " + " | ".join(f"{size / 1e9:.2f}" for size in columns) + " |")
        for model in sorted(plan.without):
            print(f"  without {model}")
        plain = sum(need.total for need in needs(plan, has_bfloat16=False).values())
        usable = (1 - SPARE) * plan.float32_gib * _GIB
        fits = fits and plain <= usable
        print(f"  on a GPU without bfloat16: {plain / 1e9:.1f} of {usable / 1e9:.1f} GB")
    return 0 if fits else 1
