"""Silero VAD as a Triton model; see :class:`parley.models.silero_vad.VadService`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.models.silero_vad import VadService
from parley.runtime.onnx import open_configured
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights
from parley.triton.absent_weights import loads_without_weights
from parley.triton.observability import log_to_triton
from parley.triton.responses import serve_tensors
from parley.vad.silero import FILE, SileroVad, bundled_folder


@loads_without_weights(pb_utils)
class TritonPythonModel:
    """Scores windows of many streams, which bring their own state."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network."""
        log_to_triton(pb_utils, args["model_name"])
        parameters = Parameters.from_args(args)
        folder = resolve_weights(parameters, bundled_folder, [FILE])
        self._service = VadService(SileroVad(open_configured(folder / FILE, parameters)))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests with one run per window step."""
        return serve_tensors(pb_utils, requests, self._service.serve)
