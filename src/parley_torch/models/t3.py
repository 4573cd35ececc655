"""The service of ``t3``, and its handler of requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from parley.engines.weight_files import find_weights
from parley.errors import InvalidMessageError
from parley.inference import Tensor, struct_tensor, with_id
from parley.llm.engine import Engine, Translation
from parley.llm.engine_metrics import EngineMetrics
from parley.llm.startup import start_engine
from parley.llm.vllm_api import ModelRunner, choose_runner
from parley.models.vllm_model import Surroundings, VllmModel
from parley.runtime.parameters import Parameters
from parley.runtime.weights import cache_dir
from parley.triton.model_traces import ModelTraces
from parley.triton.request_loop import StructHandler, stream_responses
from parley.triton.responses import Responder
from parley_torch.tts.t3.checkpoint import T3Shape, engine_folder, find_checkpoint, read_shape
from parley_torch.tts.t3.messages import AbortTokens, SpeechTokensRequest, T3Request
from parley_torch.tts.t3.request import SPEAKER_EMBEDDING_SIZE, SPEECH_CODES, TokenGeneration, TokenVoice
from parley_torch.tts.t3.service import SpeechTokenService, TokenUtterance
from parley_torch.weight_files import t3_files

_SAMPLERS: Mapping[ModelRunner, str] = MappingProxyType(
    {"v1": "SpeechTokenSampler", "v2": "SpeechTokenSlotSampler"}
)


def load_service(
    parameters: Parameters,
    default_weights: str,
    *,
    died: Callable[[str], None] = lambda _: None,
    metrics: EngineMetrics | None = None,
) -> tuple[SpeechTokenService, Engine[TokenGeneration]]:
    """Start the engine that the settings describe; call it on the event loop that will use it.

    Parameters of the model, besides those of :func:`parley.llm.startup.start_engine`:
        ``weights``: folder of a published checkpoint, see
            :func:`parley.runtime.weights.resolve_weights`.
        ``checkpoint``: its T3 file, if it has more than one.
        ``prompt_device``: where prompts are computed, for example ``cuda``.
        ``max_requests``: requests running or waiting before more are refused.
        ``model_runner``: vLLM's runner, ``v1`` or ``v2``, to which it moves.

    ``died`` is called with the reason when the engine can never answer again. ``metrics`` get its
    figures.

    Raises:
        ModelLoadingError: a setting, the arguments or the weights are not usable.
    """
    folder = find_weights(parameters, default_weights, t3_files)
    checkpoint = find_checkpoint(folder, parameters.text("checkpoint", ""))
    shape = read_shape(checkpoint)
    max_requests = parameters.integer("max_requests", 64, minimum=1)
    runner: ModelRunner = "v2" if parameters.choice("model_runner", "v1", ("v1", "v2")) == "v2" else "v1"
    choose_runner(runner, os.environ)
    started = start_engine(
        parameters,
        engine_folder(checkpoint, shape, cache_dir() / "t3"),
        lambda: _translation(shape, runner),
        fixed=engine_settings(runner),
        died=died,
        metrics=metrics,
    )
    # These need PyTorch, which the environment for vLLM must be prepared for.
    from parley_torch.tts.t3.prompt import PromptEncoder  # noqa: PLC0415
    from parley_torch.tts.t3.text import load_reader  # noqa: PLC0415

    service = SpeechTokenService(
        started.engine,
        PromptEncoder.load(checkpoint, shape, device=parameters.text("prompt_device", "cpu")),
        load_reader(folder, shape),
        shape,
        max_length=started.max_model_len,
        max_requests=max_requests,
    )
    return service, started.engine


def load_model(pb_utils: Any, parameters: Parameters) -> VllmModel:
    """What ``model.py`` of ``t3`` runs; see :func:`load_speech_token_model`."""
    return VllmModel(pb_utils, parameters, partial(load_speech_token_model, default_weights="chatterbox"))


async def load_speech_token_model(
    parameters: Parameters, surroundings: Surroundings, *, default_weights: str
) -> tuple[SpeechTokenHandler, Engine[TokenGeneration]]:
    """Start the service of :func:`load_service`.

    Raises:
        ModelLoadingError: a setting, the arguments or the weights are not usable.
    """
    service, engine = load_service(
        parameters, default_weights, died=surroundings.died, metrics=surroundings.metrics
    )
    return SpeechTokenHandler(service, surroundings.traces), engine


def engine_settings(runner: ModelRunner) -> dict[str, Any]:
    """Arguments of the engine that T3 needs."""
    return {
        "skip_tokenizer_init": True,
        "enable_prompt_embeds": True,
        "logits_processors": [f"parley_torch.tts.t3.vllm_sampling:{_SAMPLERS[runner]}"],
        # Sampling looks at the tokens before: no step may begin before the last one is known.
        "async_scheduling": False,
    }


def _translation(shape: T3Shape, runner: ModelRunner) -> Translation[TokenGeneration]:
    from parley_torch.tts.t3 import plugin  # noqa: PLC0415 - imports vLLM
    from parley_torch.tts.t3.vllm_sampling import SpeechTranslation  # noqa: PLC0415 - imports vLLM

    plugin.register()
    return SpeechTranslation(guided=shape.guided, runner=runner)


class SpeechTokenHandler(StructHandler[T3Request]):
    """Answers the requests of ``t3``: tensors ``EVENT`` and ``TOKENS`` out."""

    def __init__(self, service: SpeechTokenService, traces: ModelTraces) -> None:
        super().__init__(msgspec.json.Decoder(T3Request))
        self._service = service
        self._traces = traces

    async def answer(self, responder: Responder, message: T3Request, inputs: Mapping[str, Tensor]) -> None:
        """See :class:`parley.triton.request_loop.StructHandler`."""
        if isinstance(message, AbortTokens):
            await self._service.abort(message.request_id)
        else:
            span = self._traces.follow(responder, "generate", message.traceparent)
            steps = self._service.generate(_utterance(with_id(message), inputs), span)
            await stream_responses(
                responder, steps, lambda step: {"EVENT": struct_tensor(step[0]), "TOKENS": step[1]}
            )


def _utterance(request: SpeechTokensRequest, inputs: Mapping[str, Tensor]) -> TokenUtterance:
    speaker = inputs.get("SPEAKER_EMBEDDING")
    if speaker is None or speaker.size != SPEAKER_EMBEDDING_SIZE:
        raise InvalidMessageError(f"SPEAKER_EMBEDDING must have {SPEAKER_EMBEDDING_SIZE} numbers")
    if not np.isfinite(speaker).all():
        raise InvalidMessageError("SPEAKER_EMBEDDING is not finite")
    prompt = inputs.get("PROMPT_TOKENS", np.zeros(0, np.int32)).reshape(-1)
    if prompt.size and not 0 <= prompt.min() <= prompt.max() < SPEECH_CODES:
        raise InvalidMessageError(f"PROMPT_TOKENS go from 0 to {SPEECH_CODES - 1}")
    text = inputs.get("TEXT_TOKENS")
    if text is not None and request.text:
        raise InvalidMessageError("both text and TEXT_TOKENS were sent")
    if text is not None and not text.size:
        raise InvalidMessageError("TEXT_TOKENS is empty")
    return TokenUtterance(
        request,
        TokenVoice(speaker.reshape(-1).astype(np.float32), prompt.astype(np.int32)),
        None if text is None else [int(token) for token in text.reshape(-1)],
    )
