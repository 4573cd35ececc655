"""What Parley uses of vLLM besides the names themselves: parameters, members, fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from parley.llm.vllm_api import SYMBOLS

REPOSITORY = Path(__file__).parents[3] / "model_repository"


class Call:
    """A call with this many positional arguments, and these by name."""

    def __init__(self, positional: int = 0, *names: str) -> None:
        self.positional = positional
        self.names = names


FIELD = None
Use = Call | None

OTHERS: Mapping[str, str] = {
    "CachedRequestState": "vllm.v1.worker.gpu_input_batch:CachedRequestState",
    "CompletionOutput": "vllm.outputs:CompletionOutput",
    "EmbedsPrompt": "vllm.inputs.llm:EmbedsPrompt",
    "IterationStats": "vllm.v1.metrics.stats:IterationStats",
    "Parser": "vllm.parser.abstract_parser:Parser",
    "RequestStateStats": "vllm.v1.metrics.stats:RequestStateStats",
    "SchedulerStats": "vllm.v1.metrics.stats:SchedulerStats",
    "environment": "vllm.envs:",
}
"""What comes with others and is not imported, by a name for it."""


def _engine_arguments() -> dict[str, Use]:
    names = {
        "model",
        "disable_log_stats",
        "otlp_traces_endpoint",
        "skip_tokenizer_init",
        "enable_prompt_embeds",
        "logits_processors",
        "async_scheduling",
        "kv_cache_memory_bytes",
    }
    for path in REPOSITORY.glob("*/1/model*.json"):
        names |= json.loads(path.read_text()).keys()
    return dict.fromkeys(sorted(names), FIELD)


USES: Mapping[str, Mapping[str, Use]] = {
    **{name: {} for name in SYMBOLS},
    "AsyncEngineArgs": _engine_arguments(),
    "AsyncLLM": {
        "from_engine_args": Call(1, "stat_loggers"),
        "generate": Call(3, "trace_headers", "priority"),
        "abort": Call(1),
        "shutdown": Call(1),
        "errored": FIELD,
        "model_config": FIELD,
    },
    "Attention": {"__init__": Call(3, "num_kv_heads", "cache_config", "prefix")},
    "BatchLogitsProcessor": {
        "__init__": Call(3),
        "is_argmax_invariant": Call(),
        "update_state": Call(1),
        "apply": Call(1),
    },
    "BatchUpdate": {"removed": FIELD, "added": FIELD, "moved": FIELD},
    "CPUInt8ScaledMMLinearKernel": {
        "process_weights_after_loading": Call(1),
        "config": FIELD,
        "layer_param_names": FIELD,
    },
    "ChatCompletionRequest": dict.fromkeys(
        (
            *("messages", "tools", "tool_choice", "include_reasoning", "stream"),
            *("skip_special_tokens", "structured_outputs"),
        ),
        FIELD,
    ),
    "CachedRequestState": dict.fromkeys(
        (
            *("prompt_token_ids", "num_computed_tokens", "sampling_params"),
            "in_progress_prompt_logprobs_cpu",
        ),
        FIELD,
    ),
    "CompletionOutput": {"text": FIELD, "token_ids": FIELD, "finish_reason": FIELD, "logprobs": FIELD},
    "EmbedsPrompt": {"prompt_embeds": FIELD, "prompt_token_ids": FIELD, "prompt_is_token_ids": FIELD},
    "EngineArgs": _engine_arguments(),
    "GPUModelRunner": {
        "_get_prompt_logprobs_dict": Call(2),
        **dict.fromkeys(("num_prompt_logprobs", "requests", "query_start_loc", "input_batch"), FIELD),
    },
    "GPT2Model": {"__init__": Call(0, "vllm_config", "prefix"), "load_weights": Call(1), "wte": FIELD},
    "IterationStats": {"num_preempted_reqs": FIELD},
    "LLMEngine": {
        "from_engine_args": Call(1, "stat_loggers"),
        "add_request": Call(3, "trace_headers", "priority"),
        "abort_request": Call(1),
        "has_unfinished_requests": Call(),
        "step": Call(),
        "engine_core": FIELD,
        "model_config": FIELD,
    },
    "LogprobsTensors": dict.fromkeys(("logprob_token_ids", "logprobs", "selected_token_ranks"), FIELD),
    "LlamaMLP": {"__init__": Call(3, "prefix")},
    "LogitsContext": {"idx_mapping_np": FIELD, "seq_lens_upper_bound_np": FIELD},
    "LogitsLayer": {"__init__": Call(1), "forward": Call(3)},
    "LogitsProcRequestState": {"prompt_len": FIELD, "all_token_ids": FIELD},
    "ModelRegistry": {"get_supported_archs": Call(), "register_model": Call(2)},
    "MoveDirectionality": {"SWAP": FIELD},
    "ParallelLMHead": {"__init__": Call(2, "bias", "prefix")},
    "Parser": {"parse": Call(4), "parse_delta": Call(4, "finished"), "adjust_request": Call(1)},
    "ParserManager": {"get_parser": Call(2, "enable_auto_tools", "tool_strict_level")},
    "PlatformEnum": {"CPU": FIELD},
    "PrometheusStatLogger": {
        "__init__": Call(2),
        "record": Call(0, "scheduler_stats", "iteration_stats", "mm_cache_stats", "engine_idx"),
        "record_sleep_state": Call(2),
        "log_engine_initialized": Call(),
    },
    "QKVParallelLinear": {"__init__": Call(4, "bias", "prefix")},
    "RMSNorm": {"__init__": Call(1, "eps")},
    "RequestOutput": {
        "outputs": FIELD,
        "request_id": FIELD,
        "metrics": FIELD,
        "num_cached_tokens": FIELD,
        "prompt_logprobs": FIELD,
    },
    "RequestOutputKind": {"DELTA": FIELD},
    "RequestStateStats": dict.fromkeys(
        ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts", "num_preemptions"), FIELD
    ),
    "RowParallelLinear": {"__init__": Call(2, "bias", "prefix")},
    "SamplingParams": dict.fromkeys(
        (
            *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"),
            *("output_kind", "skip_special_tokens", "structured_outputs", "stop_token_ids"),
            *("detokenize", "extra_args", "logprob_token_ids", "prompt_logprobs"),
            "skip_reading_prefix_cache",
        ),
        FIELD,
    ),
    "SchedulerStats": dict.fromkeys(
        ("num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs", "kv_cache_usage"), FIELD
    ),
    "SlotLogitsProcessor": {"__init__": Call(2), "add_request": Call(2), "apply": Call(2)},
    "StructuredOutputsParams": {"structural_tag": FIELD},
    "SupportsMRoPE": {"get_mrope_input_positions": Call(2)},
    "VllmConfig": dict.fromkeys(
        ("model_config", "parallel_config", "cache_config", "speculative_config"), FIELD
    ),
    "convert_to_channelwise": {"": Call(2)},
    "environment": dict.fromkeys(
        (
            *("VLLM_CACHE_ROOT", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_DISABLED_KERNELS", "VLLM_DO_NOT_TRACK"),
            *("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS"),
            *("VLLM_USE_V2_MODEL_RUNNER", "VLLM_XGRAMMAR_CACHE_MB"),
        ),
        FIELD,
    ),
    "get_rope": {"": Call(1, "max_position", "rope_parameters")},
    "onednn_scaled_int8_quant": {"": Call(4)},
    "register_linear_kernel": {"": Call(3)},
    "support_torch_compile": {"": Call(0, "dynamic_arg_dims")},
}
"""By the name in :data:`parley.llm.vllm_api.SYMBOLS` or :data:`OTHERS`: members and how they are used.

An empty name is the function itself.
"""
