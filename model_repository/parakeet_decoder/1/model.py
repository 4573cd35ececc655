"""Parakeet's decoder as a Triton model; see :class:`parley.models.parakeet_decoder.DecoderService`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses
from parley.triton.responses import serve_tensors


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Turns encoded speech into tokens."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network."""
        from parley.models.parakeet_decoder import open_decoder

        self._service = open_decoder(Parameters.from_args(args), int(args["model_instance_device_id"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests with one decoding loop."""
        return serve_tensors(pb_utils, requests, self._service.serve)
