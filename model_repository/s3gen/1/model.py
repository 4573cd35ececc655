"""Chatterbox's S3Gen: speech tokens in, PCM out, all utterances in one run of the flow."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Triton's entry point; see :mod:`parley_torch.models.s3gen`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the weights."""
        from parley_torch.models.s3gen import S3GenModel

        self._model = S3GenModel(pb_utils, Parameters.from_args(args))

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests over; they are answered by the synthesis thread."""
        self._model.accept(requests)

    def finalize(self) -> None:
        """Stop."""
        self._model.close()
