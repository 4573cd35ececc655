"""Answers to the Triton requests of a synthesizer that takes the whole text at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.errors import ParleyError
from parley.inference import Tensor, decode_request, struct_tensor, with_id
from parley.metrics import Family
from parley.runtime.parameters import Parameters
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.responses import Responder, receive_requests
from parley.tts.messages import AbortSpeech, TtsRequest
from parley.tts.queue import SpeechQueue

_requests: msgspec.json.Decoder[TtsRequest] = msgspec.json.Decoder(TtsRequest)


class TritonSink:
    """Sends audio as responses to a Triton request.

    Args:
        check_every: chunks between two checks whether the caller has disconnected; a check calls
            the server.
    """

    def __init__(self, responder: Responder, check_every: int = 1) -> None:
        self._responder = responder
        self._check_every = check_every
        self._sent = 0

    @property
    def wanted(self) -> bool:
        """Whether the caller is still connected."""
        return not self._responder.cancelled

    def on_begun(self) -> None:
        """The request has waited for its turn until now."""
        self._responder.on_begun()

    def send(self, chunk: msgspec.Struct, audio: NDArray[np.int16]) -> bool:
        """Send a piece; False when the request has ended or its caller has disconnected."""
        if self._sent % self._check_every == 0 and not self.wanted:
            return False
        self._sent += 1
        return self._responder.send({"CHUNK": struct_tensor(chunk), "AUDIO": audio})

    def finish(self) -> None:
        """End the request."""
        self._responder.finish()

    def fail(self, error: ParleyError) -> None:
        """End the request with an error."""
        self._responder.fail(error)


class SpeechModel:
    """What ``model.py`` of such a synthesizer runs."""

    def __init__(
        self,
        pb_utils: Any,
        parameters: Parameters,
        synthesizer: SpeechQueue,
        *,
        check_every: int = 1,
        families: Sequence[Family] = (),
    ) -> None:
        self._pb = pb_utils
        self.metrics = ModelMetrics(pb_utils, parameters, families)
        self._traces = ModelTraces.open(parameters)
        self.synthesizer = synthesizer
        self._check_every = check_every

    def execute(self, requests: list[Any]) -> None:
        """Take over Triton's requests; returns at once."""
        receive_requests(self._pb, requests, self._begin, self.metrics)

    def close(self) -> None:
        """End every request and free what they used."""
        self.synthesizer.close()
        self.metrics.close()
        self._traces.close()

    def _begin(self, responder: Responder, tensors: Mapping[str, Tensor]) -> None:
        message = decode_request(tensors["REQUEST"], _requests)
        if isinstance(message, AbortSpeech):
            self.synthesizer.abort(message.request_id)
            responder.finish()
        else:
            characters = {"parley.characters": len(message.text)}
            self._traces.follow(responder, "speak", message.traceparent, characters)
            self.synthesizer.submit(with_id(message), TritonSink(responder, self._check_every))
