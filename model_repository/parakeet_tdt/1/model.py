"""The recogniser as a Triton model; see :class:`parley.asr.offline.pipeline.OfflinePipeline`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from parley.runtime.parameters import Parameters
from parley.triton.refusals import loads_or_refuses


@loads_or_refuses(pb_utils)
class TritonPythonModel:
    """Holds all streams and serves those that have audio, together."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the settings; the networks are other models, called when there is audio."""
        from parley.asr import checkpoint
        from parley.asr.offline.networks import RemoteModels
        from parley.asr.offline.pipeline import OfflinePipeline
        from parley.asr.offline.stream import StreamLimits
        from parley.models.recognition import RecognitionModel, open_detector
        from parley.triton.model_client import InProcessBlockingClient

        parameters = Parameters.from_args(args)
        export = checkpoint.load_description(parameters)
        limits = StreamLimits()
        limits = StreamLimits(
            preroll_ms=parameters.integer("preroll_ms", limits.preroll_ms),
            window_ms=parameters.integer("window_ms", limits.window_ms, minimum=1_000),
            cut_search_ms=parameters.integer("cut_search_ms", limits.cut_search_ms),
            max_utterance_ms=parameters.integer("max_utterance_ms", limits.max_utterance_ms, minimum=1_000),
        )
        self._port = InProcessBlockingClient(pb_utils)
        # Below the agent's own deadline, which would otherwise come before the reason is known.
        timeout_s = parameters.number("timeout_s", 4.0, minimum=0.1)
        models = RemoteModels(self._port, open_detector(), timeout_s=timeout_s)
        pipeline = OfflinePipeline(export, models, limits)
        self._model = RecognitionModel(pb_utils, args, parameters, pipeline, languages=export.languages)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer one piece of audio of each stream."""
        return self._model.execute(requests)

    def finalize(self) -> None:
        """End what runs beside the executions."""
        self._model.close()
        self._port.close()
