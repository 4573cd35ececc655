"""A synthesizer and its plan out of a model's settings."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from parley.errors import ModelLoadingError
from parley.serving.parameters import Parameters
from parley.serving.weights import resolve_weights
from parley.tts.s3gen import checkpoint
from parley.tts.s3gen.buckets import Buckets, compile_estimator, warm_up
from parley.tts.s3gen.prompts import DEFAULT_VOICES
from parley.tts.s3gen.schedule import DEFAULT_CHUNKS, ChunkSchedule, parse_sizes
from parley.tts.s3gen.scheduler import Limits
from parley.tts.s3gen.service import ServiceLimits
from parley.tts.s3gen.synthesizer import Synthesizer
from parley.tts.s3gen.utterance import Plan
from parley.tts.watermark import load_watermark

_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Loaded:
    """What a service needs."""

    synthesizer: Synthesizer
    plan: Plan
    limits: ServiceLimits
    buckets: Buckets
    max_prompt: int
    """Tokens of a voice's reference speech that are used, from its end."""


def load_s3gen(parameters: Parameters, default_weights: str) -> Loaded:
    """Load the weights and run every size once.

    Parameters of the model:
        ``weights``: folder with a checkpoint; see :func:`parley.serving.weights.resolve_weights`.
        ``device``: ``cpu`` or ``cuda``.
        ``threads``: of each operation on a CPU; 0 leaves it to the library.
        ``precision``: of the estimator, ``float32`` or ``bfloat16``.
        ``steps``: of the flow; 0 for what the checkpoint was made for.
        ``chunks``: tokens of the chunks; the last size repeats.
        ``attention``: ``chunked``, or ``full`` with a crossfade for weights that need it.
        ``past``: with chunked attention, ``kept`` lets a step cost only its new frames; ``recomputed``
            saves memory; ``auto`` keeps it except for guided checkpoints. See
            :mod:`parley.tts.s3gen.past`.
        ``past_tokens``: how far before its chunk a frame sees the utterance; 0: to its beginning.
        ``voices``: whose prompts' pasts are kept.
        ``hold_back``: frames; see :mod:`parley.tts.s3gen.vocoding`.
        ``max_tokens``: of an utterance.
        ``max_step``: new tokens of one step.
        ``max_prompt_tokens``: of a voice.
        ``watermark``: ``auto`` (if ``resemble-perth`` is installed), ``on`` or ``off``; see
            :mod:`parley.tts.watermark`.
        ``max_utterances``: open at once.
        ``max_batch``: utterances of one step.
        ``max_batch_frames``: rows times frames of one step.
        ``idle_s``: seconds without tokens after which an utterance is given up.
        ``gather_s``: seconds that the first work after a pause waits for that of others.
        ``compile``: ``true`` compiles the estimator for the sizes below, for a GPU.
        ``frame_buckets``: rising sizes to which the new frames are padded, with the past kept.
        ``whole_buckets``: the same for prompts and all frames, if the past is not kept.
        ``past_buckets``: rising sizes to which the estimator's past is padded, in frames.
        ``row_buckets``: rising numbers of rows to which batches are padded.

    Raises:
        ModelLoadingError: a setting or the weights are not usable.
    """
    device = _device(parameters)
    threads = parameters.integer("threads", 0) or torch.get_num_threads()
    torch.set_num_threads(1)  # see Synthesizer.begin
    networks = checkpoint.load(checkpoint.find_checkpoint(resolve_weights(parameters, default_weights)))
    networks.flow.to(device)
    networks.vocoder.to(device)
    plan = _plan(parameters, guided=not networks.flow.meanflow)
    buckets = _buckets(parameters, keep=plan.keeps_past)
    estimator = networks.flow.decoder.estimator
    estimator.to(_PRECISIONS[parameters.choice("precision", "float32", tuple(_PRECISIONS))])
    if parameters.choice("compile", "false", ("true", "false")) == "true":
        compile_estimator(estimator, buckets)
    synthesizer = Synthesizer(
        networks,
        device,
        steps=parameters.integer("steps", 0),
        buckets=buckets,
        voices=parameters.integer("voices", DEFAULT_VOICES, minimum=1),
        threads=threads,
    )
    warm_up(synthesizer, buckets, keep=plan.keeps_past)
    return Loaded(
        synthesizer,
        plan,
        _limits(parameters, device),
        buckets,
        parameters.integer("max_prompt_tokens", 100),
    )


def _device(parameters: Parameters) -> torch.device:
    kind = parameters.choice("device", "cpu", ("cpu", "cuda"))
    if kind == "cuda" and not torch.cuda.is_available():
        raise ModelLoadingError("device is cuda, but torch finds no GPU")
    return torch.device(kind)


def _buckets(parameters: Parameters, *, keep: bool) -> Buckets:
    def sizes(name: str) -> tuple[int, ...]:
        return parse_sizes(parameters.text(name, ""), name)

    frames, whole = sizes("frame_buckets"), sizes("whole_buckets")
    return Buckets(frames if keep else whole, sizes("row_buckets"), sizes("past_buckets") if keep else ())


def _plan(parameters: Parameters, *, guided: bool) -> Plan:
    default = Plan()
    past = parameters.choice("past", "auto", ("auto", "kept", "recomputed"))
    return Plan(
        schedule=ChunkSchedule.parse(parameters.text("chunks", ",".join(map(str, DEFAULT_CHUNKS)))),
        full_attention=parameters.choice("attention", "chunked", ("chunked", "full")) == "full",
        recompute=past == "recomputed" or (past == "auto" and guided),
        past_tokens=parameters.integer("past_tokens", default.past_tokens),
        hold_back=parameters.integer("hold_back", default.hold_back),
        max_tokens=parameters.integer("max_tokens", default.max_tokens, minimum=1),
        max_step=parameters.integer("max_step", default.max_step, minimum=1),
        watermark=load_watermark(parameters.choice("watermark", "auto", ("auto", "on", "off"))),
    )


def _limits(parameters: Parameters, device: torch.device) -> ServiceLimits:
    batch = Limits()
    return ServiceLimits(
        batch=Limits(
            max_batch=parameters.integer("max_batch", batch.max_batch, minimum=1),
            max_frames=parameters.integer("max_batch_frames", batch.max_frames, minimum=1),
            row_cost=1.0 if device.type == "cpu" else batch.row_cost,
        ),
        max_utterances=parameters.integer("max_utterances", 64, minimum=1),
        idle_s=parameters.number("idle_s", 10.0, minimum=0.1),
        gather_s=parameters.number("gather_s", ServiceLimits.gather_s, minimum=0.0),
    )
