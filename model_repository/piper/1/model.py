"""A voice of Piper: segments of English text in, a stream of PCM with word marks out."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Triton's entry point; see :mod:`parley.models.piper`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the voice."""
        from parley.models.piper import PiperModel

        self._model = PiperModel(pb_utils, Parameters.from_args(args))

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests over; they are answered by the synthesis thread."""
        self._model.accept(requests)

    def finalize(self) -> None:
        """Stop."""
        self._model.close()
