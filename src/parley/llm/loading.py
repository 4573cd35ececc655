"""A chat service out of a model's settings."""

from __future__ import annotations

from parley.llm.chat import PromptBuilder
from parley.llm.engine import Engine, EngineRequest, Translation
from parley.llm.service import ChatService
from parley.llm.starting import start_engine
from parley.serving.parameters import Parameters
from parley.serving.weights import resolve_weights

_WEIGHTS = ("config.json", "tokenizer.json", "tokenizer_config.json")


def load_chat_service(
    parameters: Parameters, default_weights: str
) -> tuple[ChatService, Engine[EngineRequest]]:
    """Start the engine that the settings describe; call it on the event loop that will use it.

    Parameters of the model, besides those of :func:`parley.llm.starting.start_engine`:
        ``weights``: see :func:`parley.serving.weights.resolve_weights`.
        ``max_requests``: requests running or waiting before more are refused.

    Raises:
        ModelLoadingError: a setting, the arguments or the weights are not usable.
    """
    weights = resolve_weights(parameters, default_weights, _WEIGHTS)
    max_requests = parameters.integer("max_requests", 64, minimum=1)
    started = start_engine(parameters, weights, _translation)
    # A tokenizer of its own: fast tokenizers may not be used from two threads at once.
    from transformers import AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(weights)
    prompts = PromptBuilder(tokenizer, started.max_model_len)
    return ChatService(started.engine, prompts, max_requests=max_requests), started.engine


def _translation() -> Translation[EngineRequest]:
    from parley.llm.vllm_types import TextTranslation  # noqa: PLC0415 - imports vLLM

    return TextTranslation()
