"""Smart Turn as a Triton model; see :mod:`parley.models.smart_turn`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Scores the pauses of many conversations; it remembers nothing between two requests."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network."""
        from parley.models.smart_turn import SmartTurnRequests, SmartTurnService, load_network
        from parley.triton.model_metrics import ModelMetrics
        from parley.triton.model_traces import ModelTraces

        parameters = Parameters.from_args(args)
        rows = parameters.integer("rows", 1, minimum=1)
        service = SmartTurnService(load_network(parameters, rows=rows))
        service.warm_up()
        self._requests = SmartTurnRequests(
            pb_utils,
            service.serve,
            together=rows,
            max_waiting=parameters.integer("max_waiting", 16, minimum=1),
            metrics=ModelMetrics(pb_utils, parameters),
            traces=ModelTraces.open(parameters),
        )

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests over; each is answered when it is scored."""
        self._requests.accept(requests)

    def finalize(self) -> None:
        """End the thread."""
        self._requests.close()
