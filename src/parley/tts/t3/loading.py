"""The service of ``t3`` out of the model's settings."""

from __future__ import annotations

import os
from collections.abc import Callable

from parley.llm.engine import Engine, Translation
from parley.llm.starting import start_engine
from parley.serving.parameters import Parameters
from parley.serving.weights import cache_dir, resolve_weights
from parley.tts.t3.checkpoint import T3Shape, engine_folder, find_checkpoint, read_shape
from parley.tts.t3.request import SpeechRequest
from parley.tts.t3.service import SpeechTokenService
from parley.tts.t3.settings import ENGINE_SETTINGS


def load_service(
    parameters: Parameters, default_weights: str, *, died: Callable[[str], None] = lambda _: None
) -> tuple[SpeechTokenService, Engine[SpeechRequest]]:
    """Start the engine that the settings describe; call it on the event loop that will use it.

    Parameters of the model, besides those of :func:`parley.llm.starting.start_engine`:
        ``weights``: folder of a published checkpoint, see
            :func:`parley.serving.weights.resolve_weights`.
        ``checkpoint``: its T3 file, if it has more than one.
        ``prompt_device``: where prompts are computed, for example ``cuda``.
        ``max_requests``: requests running or waiting before more are refused.

    Args:
        parameters: the model's settings.
        default_weights: where the settings name none.
        died: is given the reason when the engine can never answer again.

    Raises:
        ModelLoadingError: a setting, the arguments or the weights are not usable.
    """
    folder = resolve_weights(parameters, default_weights)
    checkpoint = find_checkpoint(folder, parameters.text("checkpoint", ""))
    shape = read_shape(checkpoint)
    max_requests = parameters.integer("max_requests", 64, minimum=1)
    # vLLM's newer runner hides the ids of a prompt of embeddings from the model, which carry
    # the request's settings (parley.tts.t3.side_channel).
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    started = start_engine(
        parameters,
        engine_folder(checkpoint, shape, cache_dir() / "t3"),
        lambda: _translation(shape),
        fixed=ENGINE_SETTINGS,
        died=died,
    )
    # These need PyTorch, which the environment for vLLM must be prepared for.
    from parley.tts.t3.prompt import PromptEncoder  # noqa: PLC0415
    from parley.tts.t3.text import load_reader  # noqa: PLC0415

    service = SpeechTokenService(
        started.engine,
        PromptEncoder.load(checkpoint, shape, device=parameters.text("prompt_device", "cpu")),
        load_reader(folder, shape),
        shape,
        max_length=started.max_model_len,
        max_requests=max_requests,
    )
    return service, started.engine


def _translation(shape: T3Shape) -> Translation[SpeechRequest]:
    from parley.tts.t3 import plugin  # noqa: PLC0415 - imports vLLM
    from parley.tts.t3.engine import SpeechTranslation  # noqa: PLC0415 - imports vLLM

    plugin.register()
    return SpeechTranslation(guided=shape.guided)
