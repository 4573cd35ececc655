"""Answers to the Triton requests of ``s3gen``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from parley.engines.weight_files import find_weights
from parley.errors import InvalidMessageError, ModelLoadingError
from parley.inference import Tensor, decode_request, with_id
from parley.models.synthesizer import TritonSink
from parley.runtime.batching import parse_sizes
from parley.runtime.gpu_loading import loading_on_gpu
from parley.runtime.parameters import Parameters
from parley.runtime.versions import check_gpus, check_torch
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.responses import Responder, receive_requests
from parley_torch.runtime.cuda_graphs import CudaCapture
from parley_torch.runtime.precision import choose_precision
from parley_torch.tts.s3gen import checkpoint
from parley_torch.tts.s3gen.checkpoint import Networks
from parley_torch.tts.s3gen.flow import SPEAKER_SIZE, AudioVoice, Buckets
from parley_torch.tts.s3gen.messages import OpenUtterance, PushTokens, S3GenRequest
from parley_torch.tts.s3gen.networks import MEL_BANDS
from parley_torch.tts.s3gen.scheduling import DEFAULT_CHUNKS, ChunkSchedule, S3GenLimits
from parley_torch.tts.s3gen.service import S3GenService, ServiceLimits
from parley_torch.tts.s3gen.state import FRAMES_PER_TOKEN
from parley_torch.tts.s3gen.synthesizer import DEFAULT_VOICES, AudioSynthesizer
from parley_torch.tts.s3gen.utterance import Plan
from parley_torch.tts.s3gen.window_graphs import VocoderSizes
from parley_torch.tts.watermark import load_watermark
from parley_torch.weight_files import s3gen_files

_requests: msgspec.json.Decoder[S3GenRequest] = msgspec.json.Decoder(S3GenRequest)
_NO_TOKENS = np.zeros(0, np.int64)
_MAX_PROMPT_SENT = 1_000  # tokens that are read at all
_PRECISIONS = ("float32", "bfloat16")
"""Of the estimator; it has not been tried in float16."""


class S3GenModel:
    """What ``model.py`` of ``s3gen`` runs.

    Decoupled and without Triton's sequences: an utterance's id ties its requests together. All
    utterances are served by one instance and its one thread (see
    :mod:`parley_torch.tts.s3gen.service`), so that one run of the flow serves many; a request never
    waits for a run, and an utterance that ends by itself needs no END from its caller, which a
    stopping server would not let through.

    Args:
        parameters: see :func:`parley_torch.models.s3gen.load_s3gen`.

    Raises:
        ModelLoadingError: a setting or the weights are not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        self._pb = pb_utils
        on_gpu = parameters.text("device", "cpu") == "cuda"
        with loading_on_gpu(alone=False) if on_gpu else nullcontext():
            loaded = load_s3gen(parameters, "chatterbox")
            self._max_prompt = loaded.max_prompt
            self._service = S3GenService(
                loaded.synthesizer,
                loaded.plan,
                loaded.limits,
                warm_up=loaded.warm_up,
                on_batch=self._on_batch,
            )
        # After the service, whose start takes long and may fail: they say when the model was loaded.
        self._metrics = ModelMetrics(pb_utils, parameters)
        self._traces = ModelTraces.open(parameters)

    def execute(self, requests: list[Any]) -> None:
        """Take over Triton's requests; returns at once."""
        receive_requests(self._pb, requests, self._begin, self._metrics)

    def close(self) -> None:
        """End every utterance and the thread."""
        self._service.close()
        self._metrics.close()
        self._traces.close()

    def _on_batch(self, rows: int, seconds: float) -> None:
        self._metrics.on_batch(rows, seconds)

    def _begin(self, responder: Responder, tensors: Mapping[str, Tensor]) -> None:
        message = decode_request(tensors["REQUEST"], _requests)
        tokens = tensors.get("TOKENS", _NO_TOKENS).reshape(-1)
        if isinstance(message, OpenUtterance):
            self._traces.follow(responder, "synthesize", message.traceparent)
            voice = read_voice(tensors, self._max_prompt)
            self._service.open(with_id(message, "utterance_id"), voice, tokens, TritonSink(responder))
            return
        if isinstance(message, PushTokens):
            self._service.push(message, tokens)
        else:
            self._service.stop(message.utterance_id)
        responder.finish()


def read_voice(tensors: Mapping[str, Tensor], max_prompt: int) -> AudioVoice:
    """The voice of a request, with at most ``max_prompt`` tokens from the end of its prompt.

    Raises:
        InvalidMessageError: a tensor is missing or does not fit the others.
    """
    if missing := [name for name in ("SPEAKER", "PROMPT_TOKENS", "PROMPT_MEL") if name not in tensors]:
        raise InvalidMessageError(f"no {', '.join(missing)}")
    speaker, tokens = tensors["SPEAKER"].reshape(-1), tensors["PROMPT_TOKENS"].reshape(-1)
    mel = tensors["PROMPT_MEL"]
    if len(speaker) != SPEAKER_SIZE:
        raise InvalidMessageError(f"SPEAKER has {len(speaker)} values; it must have {SPEAKER_SIZE}")
    if len(tokens) > _MAX_PROMPT_SENT:
        raise InvalidMessageError(f"PROMPT_TOKENS has {len(tokens)} tokens; at most {_MAX_PROMPT_SENT}")
    if mel.shape != (FRAMES_PER_TOKEN * len(tokens), MEL_BANDS):
        raise InvalidMessageError(
            f"PROMPT_MEL is {list(mel.shape)}; for {len(tokens)} tokens it must be "
            f"[{FRAMES_PER_TOKEN * len(tokens)}, {MEL_BANDS}]"
        )
    if not (np.isfinite(speaker).all() and np.isfinite(mel).all()):
        raise InvalidMessageError("SPEAKER or PROMPT_MEL holds values that are not numbers")
    first = max(0, len(tokens) - max_prompt)
    return AudioVoice(
        speaker.astype(np.float32),
        tokens[first:].astype(np.int64),
        mel[FRAMES_PER_TOKEN * first :].astype(np.float32),
    )


@dataclass(frozen=True)
class Loaded:
    """What a service needs."""

    synthesizer: AudioSynthesizer
    plan: Plan
    limits: ServiceLimits
    max_prompt: int
    """Tokens of a voice's reference speech that are used, from its end."""
    buckets: Buckets
    warm_up: Callable[[], None]
    """Runs every size; to be called by the thread that serves."""


def load_s3gen(parameters: Parameters, default_weights: str) -> Loaded:
    """Load the weights.

    Parameters of the model:
        ``weights``: folder with a checkpoint; see :func:`parley.runtime.weights.resolve_weights`.
        ``device``: ``cpu`` or ``cuda``.
        ``threads``: of each operation on a CPU; 0 leaves it to the library.
        ``precision``: of the estimator, ``float32``, ``bfloat16``, or ``auto``: the latter where the device
            has it.
        ``steps``: of the flow; 0 for what the checkpoint was made for.
        ``chunks``: tokens of the chunks; the last size repeats.
        ``attention``: ``chunked``, or ``full`` with a crossfade for weights that need it.
        ``past``: with chunked attention, ``kept`` lets a step cost only its new frames; ``recomputed``
            saves memory; ``auto`` keeps it except for guided checkpoints. See
            :mod:`parley_torch.tts.s3gen.state`.
        ``past_tokens``: how far before its chunk a frame sees the utterance; 0: to its beginning.
        ``voices``: whose prompts' pasts are kept.
        ``hold_back``: frames; see :mod:`parley_torch.tts.s3gen.vocoder_state`.
        ``max_tokens``: of an utterance.
        ``max_step``: new tokens of one step.
        ``max_prompt_tokens``: of a voice.
        ``watermark``: ``auto`` (if ``resemble-perth`` is installed), ``on`` or ``off``; see
            :mod:`parley_torch.tts.watermark`.
        ``max_utterances``: open at once.
        ``max_batch``: utterances of one step.
        ``max_batch_frames``: rows times frames of one step.
        ``idle_s``: seconds without tokens after which an utterance is given up.
        ``gather_s``: seconds that the first work after a pause waits for that of others.
        ``graphs``: ``true`` captures the flow as a CUDA graph for each of the sizes below, which have to be
            as large as the other settings allow batches to be; and the vocoder for sizes that follow from
            ``chunks``, ``max_step``, ``hold_back`` and ``row_buckets``.
        ``frame_buckets``: rising sizes to which the new frames are padded, with the past kept.
        ``whole_buckets``: the same for prompts and all frames, if the past is not kept.
        ``past_buckets``: rising sizes to which the estimator's past is padded, in frames. The estimator's is
            bounded long before the encoder's: a size may be repeated beside a larger one of the encoder.
        ``encoder_past_buckets``: as many, to which the encoder's past is padded at the same time, in tokens.
        ``row_buckets``: rising numbers of rows to which batches are padded.

    Raises:
        ModelLoadingError: a setting or the weights are not usable.
    """
    torch.set_num_threads(1)  # see Synthesizer.begin
    folder = find_weights(parameters, default_weights, s3gen_files)
    return prepare_s3gen(parameters, checkpoint.load(checkpoint.find_checkpoint(folder)))


def prepare_s3gen(parameters: Parameters, networks: Networks) -> Loaded:
    """:func:`load_s3gen` without its weights.

    Raises:
        ModelLoadingError: a setting is not usable.
    """
    device = _device(parameters)
    threads = parameters.integer("threads", 0) or torch.get_num_threads()
    networks.flow.to(device)
    networks.vocoder.to(device)
    plan = _plan(parameters, guided=not networks.flow.meanflow)
    buckets = _buckets(parameters, keep=plan.keeps_past)
    limits = _limits(parameters, device)
    max_prompt = _max_prompt(parameters)
    if graphs := _graphs(parameters, device):
        _check_buckets(buckets, plan, limits, max_prompt)
    estimator = networks.flow.decoder.estimator
    estimator.to(choose_precision(parameters, device, allowed=_PRECISIONS, otherwise="float32"))
    synthesizer = AudioSynthesizer(
        networks,
        device,
        steps=parameters.integer("steps", 0),
        buckets=buckets,
        voices=_voices(parameters),
        threads=threads,
    )

    def warm_up() -> None:
        synthesizer.warm_up(
            plan,
            max_frames=limits.batch.max_frames,
            capture=CudaCapture() if graphs else None,
        )

    return Loaded(synthesizer, plan, limits, max_prompt, buckets, warm_up)


@dataclass(frozen=True)
class S3GenSizes:
    """What decides about the memory of a service that keeps pasts."""

    max_tokens: int
    past_tokens: int
    """Of an utterance, in the estimator."""
    max_prompt: int
    max_utterances: int
    voices: int
    rows: int
    """Utterances of the largest batch."""
    largest_past: tuple[int, int]
    """Tokens of the encoder's past and frames of the estimator's in that batch."""
    largest_frames: int
    """New frames of that batch."""
    vocoder: VocoderSizes
    """Of the vocoder's batches."""


def s3gen_sizes(parameters: Parameters) -> S3GenSizes:
    """The sizes that the settings give, for the memory plan.

    Raises:
        ModelLoadingError: a setting is not usable.
    """
    plan = _plan(parameters, guided=False)
    buckets = _buckets(parameters, keep=True)
    limits = _limits(parameters, torch.device("cuda"))
    return S3GenSizes(
        max_tokens=plan.max_tokens,
        past_tokens=plan.past_tokens or plan.max_tokens,
        max_prompt=_max_prompt(parameters),
        max_utterances=limits.max_utterances,
        voices=_voices(parameters),
        rows=buckets.rows[-1],
        largest_past=buckets.past[-1],
        largest_frames=buckets.frames[-1],
        vocoder=plan.vocoder_sizes(buckets.rows),
    )


def _max_prompt(parameters: Parameters) -> int:
    return parameters.integer("max_prompt_tokens", 100)


def _voices(parameters: Parameters) -> int:
    return parameters.integer("voices", DEFAULT_VOICES, minimum=1)


def _check_buckets(buckets: Buckets, plan: Plan, limits: ServiceLimits, max_prompt: int) -> None:
    """Refuse settings with which some batches would have no graph."""
    step = plan.longest_step
    if plan.keeps_past:
        past_tokens = plan.past_tokens or plan.max_tokens
        frames, tokens = buckets.past[-1][::-1] if buckets.past else (0, 0)
        needs = {
            "frame_buckets": (FRAMES_PER_TOKEN * max(step, max_prompt), buckets.frames[-1:]),
            "past_buckets": (FRAMES_PER_TOKEN * (max_prompt + past_tokens), (frames,)),
            "encoder_past_buckets": (max_prompt + plan.max_tokens, (tokens,)),
        }
    else:
        needs = {"whole_buckets": (FRAMES_PER_TOKEN * (max_prompt + plan.max_tokens), buckets.frames[-1:])}
    needs["row_buckets"] = (limits.batch.max_batch, buckets.rows[-1:])
    for name, (needed, largest) in needs.items():
        if not largest or largest[0] < needed:
            found = largest[0] if largest else 0
            raise ModelLoadingError(
                f"graphs is true, but the largest of {name} is {found}: "
                f"by the other settings a batch can have {needed}"
            )


def _device(parameters: Parameters) -> torch.device:
    kind = parameters.choice("device", "cpu", ("cpu", "cuda"))
    if kind == "cuda":
        check_torch()
        check_gpus()
        if not torch.cuda.is_available():
            raise ModelLoadingError("device is cuda, but torch finds no GPU")
    return torch.device(kind)


def _graphs(parameters: Parameters, device: torch.device) -> bool:
    graphs = parameters.boolean("graphs", default=False)
    if graphs and device.type != "cuda":
        raise ModelLoadingError("graphs is true; device must be cuda")
    return graphs


def _buckets(parameters: Parameters, *, keep: bool) -> Buckets:
    def sizes(name: str, *, repeated: bool = False) -> tuple[int, ...]:
        return parse_sizes(parameters.text(name, ""), name, repeated=repeated)

    frames, whole = sizes("frame_buckets"), sizes("whole_buckets")
    past, tokens = (sizes(name, repeated=True) for name in ("past_buckets", "encoder_past_buckets"))
    if len(past) != len(tokens):
        raise ModelLoadingError(
            f"{len(past)} past_buckets and {len(tokens)} encoder_past_buckets: each needs the other"
        )
    pasts = tuple(zip(tokens, past, strict=True))
    if len(set(pasts)) < len(pasts):
        raise ModelLoadingError("past_buckets and encoder_past_buckets have the same pair of sizes twice")
    return Buckets(frames if keep else whole, sizes("row_buckets"), pasts if keep else ())


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
    batch = S3GenLimits()
    return ServiceLimits(
        batch=S3GenLimits(
            max_batch=parameters.integer("max_batch", batch.max_batch, minimum=1),
            max_frames=parameters.integer("max_batch_frames", batch.max_frames, minimum=1),
            row_cost=1.0 if device.type == "cpu" else batch.row_cost,
        ),
        max_utterances=parameters.integer("max_utterances", 64, minimum=1),
        idle_s=parameters.number("idle_s", 10.0, minimum=0.1),
        gather_s=parameters.number("gather_s", ServiceLimits.gather_s, minimum=0.0),
    )
