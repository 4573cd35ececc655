"""Chatterbox: text in, also while it is being written; PCM with word marks out."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Triton's entry point; see :mod:`parley_torch.models.chatterbox`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Get ready to speak."""
        from parley_torch.models.chatterbox import ChatterboxModel

        self._model = ChatterboxModel(pb_utils, Parameters.from_args(args))

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests over; they are answered by the utterances they belong to."""
        self._model.submit(requests)

    def finalize(self) -> None:
        """End all utterances."""
        self._model.close()
