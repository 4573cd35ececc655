"""Parakeet's encoder as a Triton model; see :class:`parley.models.parakeet_encoder.EncoderService`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses
from parley.triton.responses import serve_tensors


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Encodes stretches of speech."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network."""
        from parley.models.parakeet_encoder import open_encoder

        self._service = open_encoder(Parameters.from_args(args), int(args["model_instance_device_id"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests with one run."""
        return serve_tensors(pb_utils, requests, self._service.serve)
