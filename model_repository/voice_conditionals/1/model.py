"""The last step of ``voice_ensemble``; see :mod:`parley_torch.tts.voices.enrollment.ensemble`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses
from parley.triton.responses import serve_tensors


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Makes what the synthesizer needs of a speaker."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the networks."""
        from parley_torch.models.voice_ensemble import load_conditionals

        self._service = load_conditionals(Parameters.from_args(args))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests."""
        return serve_tensors(pb_utils, requests, self._service.serve)
