"""Whole recordings to texts; see :class:`parley.models.segments.SegmentTranscription`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Triton's entry point."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the networks."""
        from parley.models.segments import SegmentTranscription

        self._model = SegmentTranscription(pb_utils, args, Parameters.from_args(args))

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests over; they are answered when they are done, in any order."""
        self._model.accept(requests)

    def finalize(self) -> None:
        """Stop."""
        self._model.close()
