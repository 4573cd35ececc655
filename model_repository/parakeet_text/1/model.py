"""The last step of ``parakeet_ensemble``, tokens to a transcript; see :mod:`parley.asr.files.ensemble`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses
from parley.triton.responses import serve_tensors


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Writes what was decoded."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the vocabulary."""
        from parley.models.parakeet_ensemble import load_texts

        self._service = load_texts(Parameters.from_args(args))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests."""
        return serve_tensors(pb_utils, requests, self._service.serve)
