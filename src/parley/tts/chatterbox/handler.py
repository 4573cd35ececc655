"""Answers to the Triton requests of ``chatterbox``."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.errors import InvalidMessageError
from parley.inference import Tensor, struct_tensor, tensor_bytes
from parley.serving.responder import Responder
from parley.tts.chatterbox.service import ChatterboxService
from parley.tts.messages import AbortSpeech, MoreText, SpeechChunk, SpeechRequest

_requests: msgspec.json.Decoder[SpeechRequest] = msgspec.json.Decoder(SpeechRequest)


class ChatterboxHandler:
    """Turns tensors into requests and audio into tensors."""

    def __init__(self, service: ChatterboxService) -> None:
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
        if isinstance(request, AbortSpeech):
            await self._service.stop(request.request_id)
        elif isinstance(request, MoreText):
            self._service.push(request)
        else:

            def send(chunk: SpeechChunk, audio: NDArray[np.int16]) -> bool:
                return responder.send({"CHUNK": struct_tensor(chunk), "AUDIO": audio})

            await self._service.speak(request, send)
