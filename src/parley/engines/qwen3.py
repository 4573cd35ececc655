"""``qwen3`` as a :class:`parley.engines.base.ChatModel`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from parley.errors import InferenceError
from parley.inference import ModelClient, ModelRequest, struct_tensor, tensor_bytes
from parley.llm.messages import AbortRequest, Completed, GenerateRequest, LlmEvent, LlmRequest

MODEL = "qwen3"
_ABORT_TIMEOUT_S = 5.0
_events: msgspec.json.Decoder[LlmEvent] = msgspec.json.Decoder(LlmEvent)


class Qwen3ChatModel:
    """Chat completions from the model ``qwen3``.

    Args:
        port: the way to the model.
        model: name of the model.
        timeout_s: seconds until the first event, or the next one, is overdue.
    """

    def __init__(self, port: ModelClient, *, model: str = MODEL, timeout_s: float = 30.0) -> None:
        self._port = port
        self._model = model
        self._timeout_s = timeout_s

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[LlmEvent, None]:
        """Stream the answer; the last event is ``Completed``.

        Closing it early does not stop the model: call :meth:`abort`.

        Raises:
            InvalidMessageError: the model does not accept the request.
            InferenceError: the model failed, is overloaded, or did not answer in time.
        """
        completed = False
        async with aclosing(self._port.stream(self._request(request, self._timeout_s))) as responses:
            async for response in responses:
                event = _read(tensor_bytes(response["EVENT"]))
                completed = isinstance(event, Completed)
                yield event
        if not completed:
            raise InferenceError(f"{self._model} ended its answer without completing it")

    async def abort(self, request_id: str) -> None:
        """Stop ``generate`` of this id within one step of the engine.

        Raises:
            InferenceError: the model could not be told in time.
        """
        request = self._request(AbortRequest(request_id=request_id), _ABORT_TIMEOUT_S)
        async with aclosing(self._port.stream(request)) as responses:
            async for _ in responses:
                pass

    def _request(self, message: LlmRequest, timeout_s: float) -> ModelRequest:
        return ModelRequest(
            self._model,
            {"REQUEST": struct_tensor(message)},
            ("EVENT",),
            request_id=message.request_id,
            timeout_s=timeout_s,
            frees=isinstance(message, AbortRequest),
        )


def _read(raw: bytes) -> LlmEvent:
    try:
        return _events.decode(raw)
    except msgspec.MsgspecError as error:
        raise InferenceError(f"the model sent an event that cannot be read: {error}") from error
