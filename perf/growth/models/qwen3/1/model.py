"""A language model without a network: one answer to everything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import triton_python_backend_utils as pb_utils

from parley.inference import Tensor, struct_tensor
from parley.llm.messages import AbortRequest, Completed, LlmRequest, TextDelta
from parley.runtime.parameters import Parameters
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.observability import log_to_triton
from parley.triton.request_loop import RequestLoop, StructHandler
from parley.triton.responses import Responder

_ANSWER = re.findall(r"\S+ ?", "It is half past three in the afternoon.")


class _Handler(StructHandler[LlmRequest]):
    def __init__(self, traces: ModelTraces) -> None:
        super().__init__(msgspec.json.Decoder(LlmRequest))
        self._traces = traces

    async def answer(self, responder: Responder, message: LlmRequest, inputs: Mapping[str, Tensor]) -> None:
        del inputs
        if isinstance(message, AbortRequest):
            return
        self._traces.follow(responder, "generate", message.traceparent)
        count = min(len(_ANSWER), message.sampling.max_tokens)
        for text in _ANSWER[:count]:
            responder.send({"EVENT": struct_tensor(TextDelta(text=text))})
        finished = Completed(
            finish_reason="stop" if count == len(_ANSWER) else "length",
            prompt_tokens=10,
            completion_tokens=count,
        )
        responder.send({"EVENT": struct_tensor(finished)})


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
