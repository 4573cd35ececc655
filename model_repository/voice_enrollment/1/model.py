"""A speaker's recording to a voice of Chatterbox, and the list of voices."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Triton's entry point; see :mod:`parley_torch.tts.voices` for what it runs."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the networks and open the store."""
        from parley_torch.models.voice_enrollment import EnrollmentModel

        self._model = EnrollmentModel(pb_utils, Parameters.from_args(args))

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests over; they are answered when they are done."""
        self._model.accept(requests)

    def finalize(self) -> None:
        """Stop."""
        self._model.close()
