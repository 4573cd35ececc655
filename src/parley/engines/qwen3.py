"""``qwen3`` as a :class:`parley.engines.base.ChatModel`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from parley.errors import InferenceError
from parley.inference import DecoupledModel, ModelClient
from parley.llm.messages import AbortRequest, Completed, GenerateRequest, LlmEvent

MODEL = "qwen3"
_ABORT_TIMEOUT_S = 5.0
_events: msgspec.json.Decoder[LlmEvent] = msgspec.json.Decoder(LlmEvent)


class Qwen3ChatModel:
    """Chat completions from the model ``qwen3``."""

    def __init__(self, client: ModelClient, *, model: str = MODEL, timeout_s: float = 30.0) -> None:
        self._model = DecoupledModel(client, model, ("EVENT",), _events, timeout_s=timeout_s)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[LlmEvent, None]:
        """Stream the answer; the last event is ``Completed``.

        Closing it early does not stop the model: call :meth:`abort`.

        Raises:
            InvalidMessageError: the model does not accept the request.
            InferenceError: the model failed, is overloaded, or did not answer in time.
        """
        completed = False
        async with aclosing(self._model.stream(request)) as responses:
            async for event, _ in responses:
                completed = isinstance(event, Completed)
                yield event
        if not completed:
            raise InferenceError(f"{self._model.name} ended its answer without completing it")

    async def abort(self, request_id: str) -> None:
        """Stop ``generate`` of this id within one step of the engine.

        Raises:
            InferenceError: the model did not confirm in time.
        """
        await self._model.send(AbortRequest(request_id=request_id), timeout_s=_ABORT_TIMEOUT_S, frees=True)
