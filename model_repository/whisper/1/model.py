"""Whisper as a Triton model; see :class:`parley.models.segments.SegmentRecognizer`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Holds all streams and serves those that have audio, together."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the networks."""
        from parley.models.segments import SegmentRecognizer

        self._model = SegmentRecognizer(pb_utils, args, Parameters.from_args(args))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer one piece of audio of each stream."""
        return self._model.execute(requests)

    def finalize(self) -> None:
        """End what runs beside the executions."""
        self._model.close()
