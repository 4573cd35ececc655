"""Parakeet's decoder as a Triton model; see :class:`parley.models.parakeet_decoder.DecoderService`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.asr import checkpoint
from parley.asr.decoding.batch import make_decoder
from parley.asr.offline.networks import OnnxJoint
from parley.models.parakeet_decoder import DecoderService, beam_size
from parley.runtime.onnx import open_configured
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights
from parley.triton.absent_weights import loads_without_weights
from parley.triton.observability import log_to_triton
from parley.triton.responses import serve_tensors


@loads_without_weights(pb_utils)
class TritonPythonModel:
    """Turns encoded speech into tokens."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network."""
        log_to_triton(pb_utils, args["model_name"])
        parameters = Parameters.from_args(args)
        export = checkpoint.load(resolve_weights(parameters, checkpoint.DEFAULT, checkpoint.FILES))
        session = open_configured(export.decoder, parameters, device_id=int(args["model_instance_device_id"]))
        decoder = make_decoder(export, OnnxJoint(session), beam_size=beam_size(parameters))
        self._service = DecoderService(decoder)
        self._service.warm_up()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests with one decoding loop."""
        return serve_tensors(pb_utils, requests, self._service.serve)
