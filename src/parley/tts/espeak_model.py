"""Answers to the Triton requests of ``espeak``."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.errors import InvalidMessageError, ParleyError
from parley.inference import struct_tensor, tensor_bytes
from parley.serving.parameters import Parameters
from parley.serving.responder import Responder
from parley.serving.tensors import read_tensors
from parley.tts.espeak import EspeakSynthesizer
from parley.tts.espeak_library import EspeakLibrary
from parley.tts.messages import AbortSpeech, SpeechChunk, TtsRequest

_requests: msgspec.json.Decoder[TtsRequest] = msgspec.json.Decoder(TtsRequest)
_CHUNKS_BETWEEN_CHECKS = 8


class _TritonSink:
    """A Triton request as the place where audio goes."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._sent = 0

    def send(self, chunk: SpeechChunk, audio: NDArray[np.int16]) -> bool:
        """Send a piece; False when the request has ended or its caller has gone away."""
        # Asking costs a trip to the server, and a request is synthesized within milliseconds.
        if self._sent % _CHUNKS_BETWEEN_CHECKS == 0 and self._responder.cancelled:
            return False
        self._sent += 1
        return self._responder.send({"CHUNK": struct_tensor(chunk), "AUDIO": audio})

    def finish(self) -> None:
        """End the request."""
        self._responder.finish()

    def fail(self, error: ParleyError) -> None:
        """End the request with an error."""
        self._responder.fail(error)


class EspeakModel:
    """What ``model.py`` of ``espeak`` runs.

    Parameters of the model:
        ``rate``: words per minute, 80-450.
        ``buffer_ms``: audio per response.
        ``max_requests``: requests waiting before more are refused.

    Raises:
        ModelLoadingError: espeak-ng is not installed, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        self._pb = pb_utils
        library = EspeakLibrary(parameters.integer("buffer_ms", 60, minimum=10))
        library.set_rate(parameters.integer("rate", 175, minimum=80, maximum=450))
        self._synthesizer = EspeakSynthesizer(
            library, max_requests=parameters.integer("max_requests", 64, minimum=1)
        )

    def accept(self, requests: list[Any]) -> None:
        """Take over Triton's requests; returns at once."""
        for request in requests:
            responder = Responder(self._pb, request)
            try:
                self._begin(responder, tensor_bytes(read_tensors(request.inputs())["REQUEST"]))
            except Exception as error:  # noqa: BLE001 - answered and logged
                responder.fail(error)

    def close(self) -> None:
        """End every request and free the library."""
        self._synthesizer.close()

    def _begin(self, responder: Responder, raw: bytes) -> None:
        try:
            message = _requests.decode(raw)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidMessageError(f"request cannot be read: {error}") from error
        if isinstance(message, AbortSpeech):
            self._synthesizer.abort(message.request_id)
            responder.finish()
        else:
            self._synthesizer.submit(message, _TritonSink(responder))
