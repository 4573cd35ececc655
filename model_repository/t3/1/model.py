"""Chatterbox's T3 on vLLM: text and a voice in, a stream of speech tokens out."""

from __future__ import annotations

from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Triton's entry point; see :mod:`parley_torch.tts.t3` for what it runs."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the weights and start the engine."""
        from parley.models.vllm_model import VllmModel
        from parley_torch.models.t3 import load_speech_token_model

        load = partial(load_speech_token_model, default_weights="chatterbox")
        self._model = VllmModel(pb_utils, Parameters.from_args(args), load)

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests over; they are answered by the event loop."""
        self._model.submit(requests)

    def finalize(self) -> None:
        """End what is running and stop the engine."""
        self._model.close()
