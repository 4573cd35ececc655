"""Smart Turn as a Triton model; see :class:`parley.models.smart_turn.SmartTurnService`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.models.smart_turn import SmartTurnService
from parley.runtime.onnx import open_configured
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights
from parley.triton.observability import log_to_triton
from parley.triton.responses import serve_tensors
from parley.turns.smart_turn import SmartTurn, bundled_folder, network_file


class TritonPythonModel:
    """Scores the pauses of many conversations; it remembers nothing between two requests."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network."""
        log_to_triton(pb_utils, args["model_name"])
        parameters = Parameters.from_args(args)
        folder = resolve_weights(parameters, str(bundled_folder()))
        session = open_configured(network_file(folder), parameters)
        self._service = SmartTurnService(SmartTurn(session, rows=parameters.integer("rows", 1, minimum=1)))
        self._service.warm_up()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests together."""
        return serve_tensors(pb_utils, requests, self._service.serve)
