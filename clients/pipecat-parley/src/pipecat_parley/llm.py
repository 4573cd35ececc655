"""Parley's language model as a service of Pipecat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipecat.adapters.llm.base_llm_adapter import LLMContextConversionError
from pipecat.frames.frames import (
    Frame,
    FunctionCallFromLLM,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.tracing.service_decorators import traced_llm
from pipecat.utils.types import assert_given, require_given

from parley.chat import ToolCall
from parley.errors import DeadlineExceededError, ParleyError
from parley.llm.messages import Completed, Sampling, TextDelta, ToolCalled
from parley.tls import TlsOptions
from parley_stages.generation import Answer, Generation
from parley_stages.server import LazyServer
from pipecat_parley.adapter import ParleyInvocation, ParleyLLMAdapter
from pipecat_parley.errors import category_of

_TIMEOUT_S = 30.0


@dataclass
class ParleyLLMSettings(LLMSettings):
    """What can be changed while the pipeline runs; ``model`` is the name of the model on the server."""


class ParleyLLMService(LLMService[ParleyLLMAdapter]):
    """Answers contexts with a language model of a Parley server.

    Text comes as it is written. An interruption stops the model within one of its steps.

    Args:
        server: ``host:port`` of the gRPC endpoint.
        tls: how the server is spoken to by TLS; None: plain text.
        settings: what to change of the defaults, which are greedy decoding and 256 tokens.
        timeout_s: seconds until the first token, or the next one, is overdue.
        **kwargs: of Pipecat's ``LLMService``.
    """

    Settings = ParleyLLMSettings
    _settings: ParleyLLMSettings
    adapter_class = ParleyLLMAdapter

    def __init__(
        self,
        *,
        server: str = "127.0.0.1:8001",
        tls: TlsOptions | None = None,
        settings: ParleyLLMSettings | None = None,
        timeout_s: float = _TIMEOUT_S,
        **kwargs: Any,
    ) -> None:
        complete = self.Settings(
            model="qwen3",
            system_instruction=None,
            temperature=0.0,
            max_tokens=256,
            top_p=1.0,
            top_k=None,
            frequency_penalty=None,
            presence_penalty=None,
            seed=None,
            filter_incomplete_user_turns=False,
            user_turn_completion_config=None,
        )
        if settings is not None:
            complete.apply_update(settings)
        super().__init__(settings=complete, **kwargs)
        self._server = LazyServer(server, tls=tls)
        self._timeout_s = timeout_s
        self._generation: Generation | None = None

    def can_generate_metrics(self) -> bool:
        """The service measures how long the first token takes, and counts tokens."""
        return True

    async def cleanup(self) -> None:
        """Stop what is under way and close the connection."""
        await super().cleanup()
        await self._forget_model()
        await self._server.close()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Answer contexts; other frames are handed on."""
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        await self.push_frame(LLMFullResponseStartFrame())
        try:
            await self.start_processing_metrics()
            await self._process_context(frame.context)
        except LLMContextConversionError as error:
            await self.push_error(str(error), exception=error, category=ErrorCategory.APPLICATION)
        except ParleyError as error:
            if isinstance(error, DeadlineExceededError):
                await self._call_event_handler("on_completion_timeout")
            await self.push_error(f"no answer: {error.to_log()}", exception=error)
        finally:
            await self.stop_processing_metrics()
            await self.push_frame(LLMFullResponseEndFrame())

    async def run_inference(
        self,
        context: LLMContext,
        max_tokens: int | None = None,
        system_instruction: str | None = None,
        response_schema: dict[str, Any] | None = None,
    ) -> str | None:
        """The text of an answer outside of the pipeline, for example a summary.

        Args:
            context: the conversation.
            max_tokens: longest answer; None: as set.
            system_instruction: instead of the service's.
            response_schema: is not supported and ignored with a warning.

        Raises:
            ParleyError: the model failed or was late.
        """
        self._check_response_schema(response_schema)
        asked = await self._invocation(context, system_instruction)
        async with self._answer(await self._model(), asked, max_tokens) as answer:
            text = [event.text async for event in answer if isinstance(event, TextDelta)]
        return "".join(text) or None

    @traced_llm
    async def _process_context(self, context: LLMContext) -> None:
        self._log_llm_response(context)
        await self.start_ttfb_metrics()
        asked = await self._invocation(context)
        calls: list[ToolCall] = []
        async with self._answer(await self._model(), asked) as answer:
            async for event in answer:
                await self.stop_ttfb_metrics()
                if isinstance(event, TextDelta):
                    await self._push_llm_text(event.text)
                elif isinstance(event, ToolCalled):
                    await self.stop_ttfat_metrics()
                    calls.append(event.call)
                elif isinstance(event, Completed):
                    await self.start_llm_usage_metrics(_usage(event))
        await self.run_function_calls(
            [
                FunctionCallFromLLM(
                    function_name=call.name, tool_call_id=call.id, arguments=call.arguments, context=context
                )
                for call in calls
            ]
        )

    async def _invocation(self, context: LLMContext, instruction: str | None = None) -> ParleyInvocation:
        return await self.get_llm_adapter().get_llm_invocation_params(
            context, system_instruction=instruction or self._settings.system_instruction
        )

    def _answer(self, model: Generation, asked: ParleyInvocation, max_tokens: int | None = None) -> Answer:
        settings = self._settings
        top_p = assert_given(settings.top_p)
        sampling = Sampling(
            temperature=settings.temperature or 0.0,
            top_p=1.0 if top_p is None else top_p,
            max_tokens=max_tokens or settings.max_tokens or Sampling().max_tokens,
            seed=assert_given(settings.seed),
        )
        return model.answer(asked["messages"], tools=asked["tools"], sampling=sampling)

    async def _model(self) -> Generation:
        server = await self._server.get()
        if self._generation is None:
            self._generation = Generation(
                server,
                model=require_given(self._settings.model, "the language model"),
                timeout_s=self._timeout_s,
            )
        return self._generation

    async def _forget_model(self) -> None:
        generation, self._generation = self._generation, None
        if generation is not None:
            await generation.close()

    async def _update_settings(self, delta: LLMSettings) -> dict[str, Any]:
        changed = await super()._update_settings(delta)
        if "model" in changed:
            await self._forget_model()
        ignored = changed.keys() & {"top_k", "frequency_penalty", "presence_penalty"}
        self._warn_unhandled_updated_settings(ignored)
        return changed

    def _classify_error(self, exception: Exception) -> ErrorCategory | None:
        return category_of(exception)


def _usage(done: Completed) -> LLMTokenUsage:
    return LLMTokenUsage(
        prompt_tokens=done.prompt_tokens,
        completion_tokens=done.completion_tokens,
        total_tokens=done.prompt_tokens + done.completion_tokens,
        cache_read_input_tokens=done.cached_tokens,
    )
