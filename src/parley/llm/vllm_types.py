"""Between the project's types and vLLM's. Imports vLLM: call ``prepare_environment`` first."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

from parley.errors import InferenceError, ModelLoadingError
from parley.llm.engine import EngineRequest, EngineTimes, Progress
from parley.llm.vllm_api import (
    AsyncEngineArgs,
    EngineArgs,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
    VLLMClientError,
)

REFUSALS: tuple[type[Exception], ...] = (ValueError, VLLMClientError)
"""What vLLM raises for a request that it will never run."""
SCORED = "parley_scored"
"""Extra argument of sampling: places of a prompt, and the tokens that are scored in each."""
_REASONS = ("stop", "length", "abort")


def read_engine_args(
    path: Path, weights: Path, *, asynchronous: bool, fixed: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    """Read engine arguments: a flat JSON object of vLLM's own names.

    ``weights`` are loaded unless the file names a ``model``; ``fixed`` arguments replace those of the file.

    Raises:
        ModelLoadingError: the file is missing, is not JSON, or names arguments vLLM has not.
    """
    try:
        values: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelLoadingError(f"engine arguments {path}: {error}") from error
    kind = AsyncEngineArgs if asynchronous else EngineArgs
    unknown = values.keys() - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        raise ModelLoadingError(f"{path}: vLLM has no engine argument {', '.join(sorted(unknown))}")
    values.setdefault("model", str(weights))
    try:
        return kind(**{**values, **fixed})
    except (TypeError, ValueError) as error:
        raise ModelLoadingError(f"{path}: {error}") from error


class TextTranslation:
    """:class:`parley.llm.engine.Translation` of requests for text.

    For ``scored_at`` :func:`parley.llm.vllm_prompt_scores.register_prompt_scores` was called.
    """

    def prompt(self, request: EngineRequest) -> Any:
        """The prompt, as token ids."""
        prompt: dict[str, Any] = {"prompt_token_ids": list(request.prompt)}
        if request.cache_salt:  # an empty one is refused
            prompt["cache_salt"] = request.cache_salt
        return prompt

    def sampling(self, request: EngineRequest) -> Any:
        """How tokens are drawn: reported as pieces, with text."""
        tag, places = request.structural_tag, list(request.scored_at)
        scored = list(request.scored)
        scores: dict[str, Any] = {"logprob_token_ids": scored or None}
        if places:
            scores = {"prompt_logprobs": len(scored), "extra_args": {SCORED: (places, scored)}}
            scores["skip_reading_prefix_cache"] = False  # vLLM would compute the whole prompt anew
        return SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=request.max_tokens,
            seed=request.seed,
            output_kind=RequestOutputKind.DELTA,
            skip_special_tokens=request.skip_special_tokens,
            structured_outputs=StructuredOutputsParams(structural_tag=tag) if tag else None,
            **scores,
        )

    def read(self, output: RequestOutput) -> Progress:
        """What one of vLLM's reports says."""
        piece = output.outputs[0]
        return dataclasses.replace(
            read_output(output),
            token_ids=tuple(piece.token_ids),
            logprobs=_plain(piece.logprobs[0]) if piece.logprobs else {},
            # vLLM has nothing to say about a prompt's first token.
            prompt_logprobs=tuple(map(_plain, (output.prompt_logprobs or [])[1:])),
        )


def _plain(scored: Mapping[int, Any]) -> dict[int, float]:
    return {token: one.logprob for token, one in scored.items()}


def read_output(output: RequestOutput) -> Progress:
    """What one of vLLM's reports says, its tokens only counted."""
    piece = output.outputs[0]
    reason = piece.finish_reason
    if reason is not None and reason not in _REASONS:
        raise InferenceError(f"the engine ended the answer with {reason!r}")
    return Progress(
        piece.text,
        len(piece.token_ids),
        output.num_cached_tokens or 0,
        cast("Literal['stop', 'length', 'abort'] | None", reason),
        times=_read_times(output),
    )


def _read_times(output: RequestOutput) -> EngineTimes | None:
    measured = output.metrics
    if measured is None or not measured.first_token_ts:
        return None
    # vLLM's core takes them from the monotonic clock, which all processes of a machine share.
    return EngineTimes(
        measured.queued_ts,
        measured.scheduled_ts,
        measured.first_token_ts,
        measured.last_token_ts,
        measured.num_preemptions,
    )


def trace_headers(engine_args: Any, traceparent: str) -> dict[str, str] | None:
    """The trace context for vLLM's own spans, which it has if ``otlp_traces_endpoint`` is set."""
    if not traceparent or engine_args.otlp_traces_endpoint is None:
        return None
    return {"traceparent": traceparent}
