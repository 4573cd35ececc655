"""Answers to the Triton requests of a chat model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing

import msgspec

from parley.errors import InvalidMessageError
from parley.inference import Tensor, struct_tensor, tensor_bytes
from parley.llm.messages import AbortRequest, LlmRequest
from parley.llm.service import ChatService
from parley.serving.responder import Responder

_requests: msgspec.json.Decoder[LlmRequest] = msgspec.json.Decoder(LlmRequest)


class ChatHandler:
    """Turns tensors into requests and events into tensors."""

    def __init__(self, service: ChatService) -> None:
        self._service = service

    async def __call__(self, responder: Responder, inputs: Mapping[str, Tensor]) -> None:
        """Answer one request.

        Raises:
            ParleyError: the request failed; the caller answers with it.
        """
        try:
            request = _requests.decode(tensor_bytes(inputs["REQUEST"]))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidMessageError(f"request cannot be read: {error}") from error
        if isinstance(request, AbortRequest):
            await self._service.abort(request.request_id)
            return
        async with aclosing(self._service.generate(request)) as events:
            async for event in events:
                if not responder.send({"EVENT": struct_tensor(event)}):
                    return
