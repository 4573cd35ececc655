"""Parakeet's encoder as a Triton model; see :class:`parley.asr.parakeet.services.EncoderService`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.asr import checkpoint
from parley.asr.parakeet.networks import OnnxEncoder
from parley.asr.parakeet.services import EncoderService
from parley.serving.execution import serve_tensors
from parley.serving.logs import log_to_triton
from parley.serving.onnx import open_configured
from parley.serving.parameters import Parameters
from parley.serving.weights import resolve_weights


class TritonPythonModel:
    """Encodes stretches of speech."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network."""
        log_to_triton(pb_utils, args["model_name"])
        parameters = Parameters.from_args(args)
        export = checkpoint.load(resolve_weights(parameters, checkpoint.DEFAULT, checkpoint.FILES))
        session = open_configured(export.encoder, parameters, device_id=int(args["model_instance_device_id"]))
        self._service = EncoderService(OnnxEncoder(session), export.config.features_size)
        self._service.warm_up()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests with one run."""
        return serve_tensors(pb_utils, requests, self._service.serve)
