"""The chat service of ``qwen3``, and its handler of requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from parley.chat import ChatMessage
from parley.errors import InvalidMessageError, InvalidModelOutputError, ModelLoadingError, ParleyError
from parley.inference import Tensor, struct_tensor, with_id
from parley.llm.engine import Engine, EngineRequest, Translation
from parley.llm.engine_metrics import EngineMetrics
from parley.llm.guidance import ToolGuidance
from parley.llm.known_models import with_known_settings
from parley.llm.messages import (
    AbortRequest,
    GenerateRequest,
    LlmRequest,
    Priority,
    Question,
    Sampling,
)
from parley.llm.prompt import PromptBuilder, Rendering, TemplateRendering
from parley.llm.python_calls.format import CallGrammar, PythonFormat
from parley.llm.python_calls.rendering import PythonRendering
from parley.llm.replies import HermesFormat, ReplyFormat
from parley.llm.service import ChatService
from parley.llm.startup import EngineSettings, start_engine
from parley.models.vllm_model import Surroundings, VllmModel
from parley.protocol import Tool
from parley.runtime.parameters import Parameters, Positive
from parley.runtime.weights import resolve_weights
from parley.triton.model_traces import ModelTraces
from parley.triton.request_loop import StructHandler, stream_responses
from parley.triton.responses import Responder

_WEIGHTS = ("config.json", "tokenizer.json", "tokenizer_config.json")
_OWN_FORMAT = "hermes"
_PYTHON = "python"
_WARM_UP = GenerateRequest(
    request_id="warm-up",
    messages=[ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Hello!")],
    tools=[
        Tool(name="get_time", parameters={"properties": {"city": {"type": "string"}}, "required": ["city"]})
    ],
    sampling=Sampling(max_tokens=8),
    priority=Priority.WARM_UP,
)
_FIRST_SPEECH = msgspec.structs.replace(_WARM_UP, request_id="warm-up-speech", priority=Priority.ANSWER)
_FIRST_QUESTION = GenerateRequest(
    request_id="warm-up-question",
    messages=_WARM_UP.messages,
    questions=[Question(text="Is it late?", choices=["Yes", "No"])] * 2,
    priority=Priority.WARM_UP,
)
_FIRST_TURN_END = GenerateRequest(
    request_id="warm-up-turn-end", messages=_WARM_UP.messages, turn_end=True, priority=Priority.WARM_UP
)


class ChatSettings(msgspec.Struct, frozen=True):
    """Settings of a chat model."""

    max_requests: Positive = 64
    """Requests that run or wait before more are refused."""
    tool_parser: str = _OWN_FORMAT
    """How the model writes tool calls: ``hermes``, ``python`` (calls of Python functions), or one of vLLM's
    tool parsers."""
    tool_examples: bool = True
    """With ``python``, whether the prompt shows how to answer, as for a model that was not trained for it."""
    reasoning_parser: str = ""
    """One of vLLM's, for a model that thinks before it answers. Its reasoning is dropped."""
    guided_tools: bool = True
    """Whether the arguments of tool calls are constrained to the tools' schemas."""
    chat_template_kwargs: str = "{}"
    """Variables of the chat template, as a JSON object."""


def load_chat_service(
    parameters: Parameters,
    default_weights: str,
    *,
    died: Callable[[str], None] = lambda _: None,
    metrics: EngineMetrics | None = None,
) -> tuple[ChatService, Engine[EngineRequest]]:
    """Start the engine that the settings describe; call it on the event loop that will use it.

    Parameters of the model: ``weights``, :class:`ChatSettings` and
    :class:`parley.llm.startup.EngineSettings`.

    ``died`` is called with the reason when the engine can never answer again. ``metrics`` get its
    figures.

    Raises:
        ModelLoadingError: a setting, the arguments or the weights are not usable.
    """
    parameters = with_known_settings(parameters)
    weights = resolve_weights(parameters, default_weights, _WEIGHTS)
    settings = parameters.read(ChatSettings)
    options = _template_options(settings.chat_template_kwargs)
    in_process = parameters.read(EngineSettings).engine == "inprocess"
    translation = partial(_translation, in_process)
    # As many tokens are scored as there are tools; vLLM's own limit is 20.
    scored = {"max_logprobs": -1}
    started = start_engine(parameters, weights, translation, fixed=scored, died=died, metrics=metrics)
    # A tokenizer of its own: fast tokenizers may not be used from two threads at once.
    from transformers import AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(weights)
    rendering, replies = _format(settings, tokenizer, options)
    prompts = PromptBuilder(tokenizer, started.max_model_len, options, rendering, block=started.block)
    service = ChatService(
        started.engine, prompts, replies, max_requests=settings.max_requests, scores_prompts=in_process
    )
    return service, started.engine


def load_model(pb_utils: Any, parameters: Parameters) -> VllmModel:
    """What ``model.py`` of ``qwen3`` runs; see :func:`load_chat_model`."""
    return VllmModel(pb_utils, parameters, partial(load_chat_model, default_weights="Qwen3-4B-AWQ"))


async def load_chat_model(
    parameters: Parameters, surroundings: Surroundings, *, default_weights: str
) -> tuple[ChatHandler, Engine[EngineRequest]]:
    """Start the service of :func:`load_chat_service`, and let it answer once.

    Raises:
        ModelLoadingError: a setting, the arguments or the weights are not usable.
    """
    service, engine = load_chat_service(
        parameters, default_weights, died=surroundings.died, metrics=surroundings.metrics
    )
    await warm_up(service)
    return ChatHandler(service, surroundings.traces), engine


async def warm_up(chat: ChatService) -> None:
    """Answer under the grammars of a tool and of speech: no caller waits for what only the first answer does.

    The compiler of grammars reads the vocabulary then, and kernels are chosen for the first shapes. With the
    first question vLLM compiles a kernel for log probabilities, in two seconds in which nothing else runs.

    Raises:
        ModelLoadingError: the engine cannot answer at all.
    """
    # A call that these few tokens cut off; a model that cannot compare answers, or whose template has no
    # place behind the user's words.
    for request, expected in (
        (_WARM_UP, InvalidModelOutputError),
        (_FIRST_SPEECH, InvalidModelOutputError),
        (_FIRST_QUESTION, InvalidMessageError),
        (_FIRST_TURN_END, InvalidMessageError),
    ):
        try:
            async for _ in chat.generate(request):
                pass
        except expected:
            pass
        except ParleyError as error:
            raise ModelLoadingError(f"the first answer failed: {error}") from error


def _format(settings: ChatSettings, tokenizer: Any, options: dict[str, Any]) -> tuple[Rendering, ReplyFormat]:
    """How the prompt describes tools, and how the model calls them."""
    check = None
    if settings.guided_tools:
        from xgrammar import Grammar  # noqa: PLC0415 - comes with vLLM

        check = Grammar.from_structural_tag
    tool_parser, reasoning_parser = settings.tool_parser, settings.reasoning_parser
    if tool_parser == _PYTHON and not reasoning_parser:
        return PythonRendering(examples=settings.tool_examples), PythonFormat(
            CallGrammar(check) if check else None
        )
    if tool_parser == _OWN_FORMAT and not reasoning_parser:
        return TemplateRendering(), HermesFormat(ToolGuidance(check) if check else None)
    from parley.llm.vllm_replies import VllmFormat  # noqa: PLC0415 - imports vLLM

    return TemplateRendering(), VllmFormat(tokenizer, tool_parser, reasoning_parser, options, check)


def _template_options(raw: str) -> dict[str, Any]:
    try:
        options = json.loads(raw)
    except ValueError as error:
        raise ModelLoadingError(f"chat_template_kwargs {raw!r}: {error}") from error
    if not isinstance(options, dict):
        raise ModelLoadingError(f"chat_template_kwargs {raw!r} is not a JSON object")
    return options


def _translation(scores_prompts: bool) -> Translation[EngineRequest]:
    from parley.llm.vllm_types import TextTranslation  # noqa: PLC0415 - imports vLLM

    if scores_prompts:
        from parley.llm.vllm_prompt_scores import register_prompt_scores  # noqa: PLC0415 - as above

        register_prompt_scores()
    return TextTranslation()


class ChatHandler(StructHandler[LlmRequest]):
    """Answers the requests of a chat model: tensor ``REQUEST`` in, tensors ``EVENT`` out."""

    def __init__(self, service: ChatService, traces: ModelTraces) -> None:
        super().__init__(msgspec.json.Decoder(LlmRequest))
        self._service = service
        self._traces = traces

    async def answer(self, responder: Responder, message: LlmRequest, inputs: Mapping[str, Tensor]) -> None:
        """See :class:`parley.triton.request_loop.StructHandler`."""
        del inputs
        if isinstance(message, AbortRequest):
            await self._service.abort(message.request_id)
        else:
            span = self._traces.follow(responder, "generate", message.traceparent)
            events = self._service.generate(with_id(message), span)
            await stream_responses(responder, events, lambda event: {"EVENT": struct_tensor(event)})
