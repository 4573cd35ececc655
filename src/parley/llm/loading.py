"""A chat service out of a model's settings."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from parley.llm.chat import PromptBuilder
from parley.llm.engine import Engine
from parley.llm.service import ChatService
from parley.llm.stub_environment import prepare_environment
from parley.serving.parameters import Parameters
from parley.serving.weights import resolve_weights

START_TIMEOUT_S = 900.0
_WEIGHTS = ("config.json", "tokenizer.json", "tokenizer_config.json")


def load_chat_service(parameters: Parameters, default_weights: str) -> tuple[ChatService, Engine]:
    """Start the engine that the settings describe; call it on the event loop that will use it.

    Parameters of the model:
        ``engine``: ``inprocess`` (one process; CPU) or ``async`` (a process for the core; GPU).
        ``engine_args``: file in the version folder with vLLM's engine arguments.
        ``weights``: see :func:`parley.serving.weights.resolve_weights`.
        ``max_requests``: requests running or waiting before more are refused.
        ``threads``: threads per matrix operation on a CPU; 0 leaves it to the library.

    Raises:
        ModelLoadingError: a setting, the arguments or the weights are not usable.
    """
    in_process = parameters.choice("engine", "async", ("inprocess", "async")) == "inprocess"
    weights = resolve_weights(parameters, default_weights, _WEIGHTS)
    arguments = parameters.version_dir / parameters.text("engine_args", "model.json")
    max_requests = parameters.integer("max_requests", 64, minimum=1)
    prepare_environment(
        engine_in_process=in_process,
        threads=parameters.integer("threads", 0),
        cache_dir=_cache_dir() / "vllm",
    )
    engine, length = _start(arguments, weights, in_process=in_process)
    # A tokenizer of its own: fast tokenizers may not be used from two threads at once.
    from transformers import AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(weights)
    service = ChatService(engine, PromptBuilder(tokenizer, length), max_requests=max_requests)
    return service, engine


def _start(arguments: Path, weights: Path, *, in_process: bool) -> tuple[Engine, int]:
    # vLLM reads the environment while it is imported.
    from parley.llm.vllm_types import read_engine_args  # noqa: PLC0415

    engine_args: Any = read_engine_args(arguments, weights, asynchronous=not in_process)
    if not in_process:
        from parley.llm.async_llm import AsyncEngine  # noqa: PLC0415

        engine = AsyncEngine(engine_args)
        return engine, engine.max_model_len
    from parley.llm.inprocess import InProcessEngine  # noqa: PLC0415
    from parley.llm.vllm_engine import VllmEngine  # noqa: PLC0415

    created: list[VllmEngine] = []

    def create() -> VllmEngine:
        created.append(VllmEngine(engine_args))
        return created[0]

    stepped = InProcessEngine(create, start_timeout_s=START_TIMEOUT_S)
    return stepped, created[0].max_model_len


def _cache_dir() -> Path:
    """A folder that survives restarts, if there is any."""
    home = os.environ.get("XDG_CACHE_HOME") or (Path.home() / ".cache" if "HOME" in os.environ else "")
    return Path(home or tempfile.gettempdir()) / "parley"
