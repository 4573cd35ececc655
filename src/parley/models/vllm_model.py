"""What ``model.py`` of a model on vLLM runs: its event loop, metrics and traces, and its end."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parley.inference import Tensor
from parley.llm.engine import Engine
from parley.llm.engine_metrics import ENGINE_FAMILIES, EngineMetrics
from parley.runtime.gpu_loading import START_TIMEOUT_S
from parley.runtime.parameters import Parameters
from parley.runtime.process_end import skip_interpreter_end
from parley.triton.model_metrics import ModelMetrics
from parley.triton.model_traces import ModelTraces
from parley.triton.request_loop import Handler, RequestLoop
from parley.triton.responses import Responder


@dataclass(frozen=True)
class Surroundings:
    """What a model needs besides its settings."""

    died: Callable[[str], None]
    """To be called with the reason when the engine can never answer again."""
    metrics: EngineMetrics
    traces: ModelTraces


Load = Callable[[Parameters, Surroundings], Awaitable[tuple[Handler, Engine[Any]]]]


class VllmModel:
    """Answers requests on an event loop of its own.

    Args:
        load: loads the weights and starts the engine; called on that loop, because vLLM's asynchronous
            engine belongs to one.

    Raises:
        ModelLoadingError: a setting or the weights are not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters, load: Load) -> None:
        skip_interpreter_end()
        self._handle: Handler
        self._engine: Engine[Any]
        self._traces = ModelTraces.open(parameters)
        metrics = ModelMetrics(pb_utils, parameters, ENGINE_FAMILIES)
        engine_metrics = EngineMetrics(metrics.recorder, parameters.model, parameters.instance)
        self._loop = RequestLoop(pb_utils, self._answer, metrics)
        surroundings = Surroundings(self._loop.end_process, engine_metrics, self._traces)
        self._loop.run(self._load(load, parameters, surroundings), START_TIMEOUT_S)

    def execute(self, requests: list[Any]) -> None:
        """Take over Triton's requests; returns at once."""
        self._loop.submit(requests)

    def close(self) -> None:
        """End what is running and stop the engine."""
        # vLLM collects garbage on its way out, among some million objects that end with the process.
        gc.freeze()
        self._loop.close(self._engine.shutdown)
        self._traces.close()

    async def _load(self, load: Load, parameters: Parameters, surroundings: Surroundings) -> None:
        self._handle, self._engine = await load(parameters, surroundings)

    async def _answer(self, responder: Responder, inputs: Mapping[str, Tensor]) -> None:
        await self._handle(responder, inputs)
