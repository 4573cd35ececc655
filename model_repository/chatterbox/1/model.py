"""Chatterbox: text in, also while it is being written; PCM with word marks out."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.models.chatterbox import ChatterboxModel
from parley.runtime.parameters import Parameters
from parley.triton.absent_weights import loads_without_weights
from parley.triton.observability import log_to_triton


@loads_without_weights(pb_utils)
class TritonPythonModel:
    """Triton's entry point; see :mod:`parley.models.chatterbox`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Get ready to speak."""
        log_to_triton(pb_utils, args["model_name"])
        self._model = ChatterboxModel(pb_utils, Parameters.from_args(args))

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests over; they are answered by the utterances they belong to."""
        self._model.submit(requests)

    def finalize(self) -> None:
        """End all utterances."""
        self._model.close()
