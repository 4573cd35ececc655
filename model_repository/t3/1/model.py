"""Chatterbox's T3 on vLLM: text and a voice in, a stream of speech tokens out."""

from __future__ import annotations

import gc
from typing import Any

import triton_python_backend_utils as pb_utils

from parley.llm.startup import START_TIMEOUT_S
from parley.models.t3 import SpeechTokenHandler, load_service
from parley.runtime.parameters import Parameters
from parley.runtime.process_end import skip_interpreter_end
from parley.triton.model_metrics import ModelMetrics
from parley.triton.observability import log_to_triton
from parley.triton.request_loop import RequestLoop


class TritonPythonModel:
    """Triton's entry point; see :mod:`parley.tts.t3` for what it runs."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the weights and start the engine."""
        skip_interpreter_end()
        log_to_triton(pb_utils, args["model_name"])
        parameters = Parameters.from_args(args)
        self._loop = RequestLoop(pb_utils, self._answer, ModelMetrics(pb_utils, parameters))
        self._loop.run(self._load(parameters), START_TIMEOUT_S)

    async def _load(self, parameters: Parameters) -> None:
        # On the event loop that will use it: vLLM's asynchronous engine belongs to one.
        service, self._engine = load_service(parameters, "chatterbox", died=self._loop.end_process)
        self._handle = SpeechTokenHandler(service)

    async def _answer(self, responder: Any, inputs: Any) -> None:
        await self._handle(responder, inputs)

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests over; they are answered by the event loop."""
        self._loop.submit(requests)

    def finalize(self) -> None:
        """End what is running and stop the engine."""
        # vLLM collects garbage on its way out, among some million objects that end with the process.
        gc.freeze()
        self._loop.close(self._engine.shutdown)
