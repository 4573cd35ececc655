"""The recogniser ``parakeet_tdt``, whose networks are other models."""

from __future__ import annotations

from typing import Any

from parley.asr import checkpoint
from parley.asr.offline.networks import RemoteModels
from parley.asr.offline.pipeline import OfflinePipeline
from parley.asr.offline.stream import StreamLimits
from parley.models.recognition import RecognitionModel, open_detector
from parley.runtime.parameters import Parameters
from parley.triton.model_client import InProcessBlockingClient


class ParakeetRecognizer(RecognitionModel):
    """What ``model.py`` of ``parakeet_tdt`` runs.

    Parameters of the model, besides those of :class:`parley.models.recognition.RecognitionModel`:
        ``preroll_ms``: audio before the onset that is read too.
        ``window_ms``: longest audio that is encoded at once.
        ``cut_search_ms``: end of a full window in which its quietest place is looked for, to cut it there.
        ``max_utterance_ms``: speech without a pause is ended after this time.
        ``timeout_s``: limit of each call to a network.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        export = checkpoint.load_description(parameters)
        defaults = StreamLimits()
        limits = StreamLimits(
            preroll_ms=parameters.integer("preroll_ms", defaults.preroll_ms),
            window_ms=parameters.integer("window_ms", defaults.window_ms, minimum=1_000),
            cut_search_ms=parameters.integer("cut_search_ms", defaults.cut_search_ms),
            max_utterance_ms=parameters.integer("max_utterance_ms", defaults.max_utterance_ms, minimum=1_000),
        )
        self._client = InProcessBlockingClient(pb_utils)
        # Below the agent's own deadline, which would otherwise come before the reason is known.
        timeout_s = parameters.number("timeout_s", 4.0, minimum=0.1)
        models = RemoteModels(self._client, open_detector(), timeout_s=timeout_s)
        pipeline = OfflinePipeline(export, models, limits)
        super().__init__(pb_utils, parameters, pipeline, languages=export.languages)

    def close(self) -> None:
        """End what runs beside the executions."""
        super().close()
        self._client.close()
