"""espeak-ng: segments of text in, a stream of PCM with word marks out."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Triton's entry point; see :mod:`parley.models.espeak`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the library."""
        from parley.models.espeak import EspeakModel

        self._model = EspeakModel(pb_utils, Parameters.from_args(args))

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests over; they are answered by the synthesis thread."""
        self._model.accept(requests)

    def finalize(self) -> None:
        """Stop."""
        self._model.close()
