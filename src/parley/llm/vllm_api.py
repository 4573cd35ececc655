"""All that Parley uses of vLLM, in one place: nothing else imports it.

Most of it is not public, so it changes from version to version. ``SYMBOLS`` says what is used and where it
is; ``tests/unit/llm/test_vllm_api.py`` checks names, parameters and fields against the sources of the oldest
and the newest version that :mod:`parley.runtime.versions` accepts.

Every name of ``SYMBOLS`` is an attribute of this module, which is imported when it is first asked for: the
process that holds the engine's client needs other parts than the one that holds its core. vLLM reads its
environment while it is imported: call :func:`parley.llm.startup.prepare_environment` first.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, Literal

ModelRunner = Literal["v1", "v2"]
"""Which of vLLM's two implementations runs a model."""
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"

_LAYERS = "vllm.model_executor.layers"
_KERNELS = "vllm.model_executor.kernels.linear"

SYMBOLS: Mapping[str, str] = MappingProxyType(
    {
        # Engines.
        "AsyncEngineArgs": "vllm.engine.arg_utils:AsyncEngineArgs",
        "AsyncLLM": "vllm.v1.engine.async_llm:AsyncLLM",
        "EngineArgs": "vllm.engine.arg_utils:EngineArgs",
        "EngineDeadError": "vllm.v1.engine.exceptions:EngineDeadError",
        "LLMEngine": "vllm.v1.engine.llm_engine:LLMEngine",
        "PrometheusStatLogger": "vllm.v1.metrics.loggers:PrometheusStatLogger",
        "VllmConfig": "vllm.config:VllmConfig",
        "VLLMClientError": "vllm.exceptions:VLLMClientError",
        # Requests.
        "RequestOutput": "vllm.outputs:RequestOutput",
        "RequestOutputKind": "vllm.sampling_params:RequestOutputKind",
        "SamplingParams": "vllm.sampling_params:SamplingParams",
        "StructuredOutputsParams": "vllm.sampling_params:StructuredOutputsParams",
        # Parsers of answers.
        "ChatCompletionRequest": "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest",
        "ParserManager": "vllm.parser:ParserManager",
        # Models.
        "Attention": f"{_LAYERS}.attention:Attention",
        "CacheConfig": "vllm.config:CacheConfig",
        "GPT2Model": "vllm.model_executor.models.gpt2:GPT2Model",
        "LlamaMLP": "vllm.model_executor.models.llama:LlamaMLP",
        "LogitsLayer": f"{_LAYERS}.logits_processor:LogitsProcessor",
        "ModelRegistry": "vllm:ModelRegistry",
        "ParallelLMHead": f"{_LAYERS}.vocab_parallel_embedding:ParallelLMHead",
        "QKVParallelLinear": f"{_LAYERS}.linear:QKVParallelLinear",
        "RMSNorm": f"{_LAYERS}.layernorm:RMSNorm",
        "RowParallelLinear": f"{_LAYERS}.linear:RowParallelLinear",
        "SupportsMRoPE": "vllm.model_executor.models.interfaces:SupportsMRoPE",
        "get_rope": f"{_LAYERS}.rotary_embedding:get_rope",
        "support_torch_compile": "vllm.compilation.decorators:support_torch_compile",
        # Sampling, by the runners V1 and V2.
        "GPUModelRunner": "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
        "LogprobsTensors": "vllm.v1.outputs:LogprobsTensors",
        "BatchLogitsProcessor": "vllm.v1.sample.logits_processor:LogitsProcessor",
        "BatchUpdate": "vllm.v1.sample.logits_processor:BatchUpdate",
        "MoveDirectionality": "vllm.v1.sample.logits_processor:MoveDirectionality",
        "LogitsContext": "vllm.v1.worker.gpu.sample.logits_processor:LogitsContext",
        "LogitsProcRequestState": "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcRequestState",
        "SlotLogitsProcessor": "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor",
        # int8 on processors without VNNI.
        "CPUInt8ScaledMMLinearKernel": f"{_KERNELS}.scaled_mm.cpu:CPUInt8ScaledMMLinearKernel",
        "PlatformEnum": "vllm.platforms:PlatformEnum",
        "convert_to_channelwise": f"{_LAYERS}.quantization.utils.w8a8_utils:convert_to_channelwise",
        "onednn_scaled_int8_quant": "vllm._custom_ops:onednn_scaled_int8_quant",
        "register_linear_kernel": f"{_KERNELS}:register_linear_kernel",
    }
)
"""``module:name`` by the name that it has here."""


def __getattr__(name: str) -> Any:
    try:
        module, _, attribute = SYMBOLS[name].partition(":")
    except KeyError:
        raise AttributeError(f"module {__name__} has no attribute {name}") from None
    found = getattr(importlib.import_module(module), attribute)
    globals()[name] = found
    return found


def choose_runner(runner: ModelRunner, environment: MutableMapping[str, str]) -> None:
    """Let vLLM run models with this runner; call it before vLLM is imported."""
    environment[RUNNER_VARIABLE] = "1" if runner == "v2" else "0"


def embedded_prompt(embeddings: Any, ids: list[int], runner: ModelRunner) -> dict[str, Any]:
    """A prompt of embeddings, whose ids reach the model although nothing is embedded by them.

    Args:
        embeddings: float tensor [n, width].
        ids: [n]; the model gets them with the prompt (M-RoPE), and penalties count them.
        runner: the one that runs the model.
    """
    prompt = {"prompt_embeds": embeddings, "prompt_token_ids": ids}
    # V1 embeds every id that is not marked. V2 embeds none of them, and marked ones are zero for the model.
    return prompt if runner == "v2" else {**prompt, "prompt_is_token_ids": [False] * len(ids)}


def get_parser(tool_parser: str, reasoning_parser: str, *, strict: bool, tokenizer: Any) -> Any:
    """The class of parsers for answers with tool calls, and with reasoning if there is such a parser.

    Raises:
        TypeError: there is none, or the tokenizer lacks what it needs.
    """
    get = __getattr__("ParserManager").get_parser
    options = {
        "enable_auto_tools": True,
        "tool_strict_level": "parameter" if strict else "auto",
        "tokenizer": tokenizer,  # from 0.32 on
    }
    known = inspect.signature(get).parameters
    return get(
        tool_parser,
        reasoning_parser or None,
        **{name: value for name, value in options.items() if name in known},
    )
