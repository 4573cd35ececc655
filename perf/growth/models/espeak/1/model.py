"""A synthesizer without a voice: a tone for each character."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import triton_python_backend_utils as pb_utils

from parley.inference import Tensor, struct_tensor
from parley.runtime.parameters import Parameters
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.observability import log_to_triton
from parley.triton.request_loop import RequestLoop, StructHandler
from parley.triton.responses import Responder
from parley.tts.messages import AbortSpeech, SpeechChunk, TtsRequest

_RATE = 22_050
_CHARACTER = _RATE * 60 // 1000
_PIECE = _RATE * 240 // 1000


class _Handler(StructHandler[TtsRequest]):
    def __init__(self, traces: ModelTraces) -> None:
        super().__init__(msgspec.json.Decoder(TtsRequest))
        self._traces = traces

    async def answer(self, responder: Responder, message: TtsRequest, inputs: Mapping[str, Tensor]) -> None:
        del inputs
        if isinstance(message, AbortSpeech):
            return
        self._traces.follow(responder, "speak", message.traceparent, {"parley.characters": len(message.text)})
        length = _CHARACTER * len(message.text)
        for offset in range(0, length, _PIECE):
            samples = np.arange(offset, min(offset + _PIECE, length), dtype=np.float32)
            audio = (8000 * np.sin(samples * (2 * np.pi * 440 / _RATE))).astype(np.int16)
            chunk = SpeechChunk(sample_rate=_RATE, offset=offset)
            responder.send({"CHUNK": struct_tensor(chunk), "AUDIO": audio})


class TritonPythonModel:
    """Answers requests as they come."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the event loop that answers requests."""
        log_to_triton(pb_utils, args["model_name"])
        parameters = Parameters.from_args(args)
        self._traces = ModelTraces.open(parameters)
        metrics = ModelMetrics(pb_utils, parameters)
        self._loop = RequestLoop(pb_utils, _Handler(self._traces), metrics)

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests over."""
        self._loop.submit(requests)

    def finalize(self) -> None:
        """End every request, and export the spans that wait."""
        self._loop.close()
        self._traces.close()
