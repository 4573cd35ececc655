"""The recogniser ``parakeet_tdt``, whose networks are other models."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from parley.asr import checkpoint
from parley.asr.parakeet.networks import RemoteModels
from parley.asr.parakeet.pipeline import OfflinePipeline
from parley.asr.parakeet.stream import StreamLimits
from parley.models.recognition import RecognitionModel, open_detector
from parley.runtime.parameters import Natural, Parameters
from parley.triton.model_client import InProcessBlockingClient


class ParakeetSettings(msgspec.Struct, frozen=True):
    """Settings of ``parakeet_tdt``."""

    preroll_ms: Natural = StreamLimits.preroll_ms
    """Audio before the onset that is recognised too."""
    window_ms: Annotated[int, msgspec.Meta(ge=1_000)] = StreamLimits.window_ms
    """Longest audio that is encoded at once."""
    cut_search_ms: Natural = StreamLimits.cut_search_ms
    """End of a full window in which its quietest place is looked for, to cut it there."""
    max_utterance_ms: Annotated[int, msgspec.Meta(ge=1_000)] = StreamLimits.max_utterance_ms
    """Speech without a pause is ended after this time."""
    timeout_s: Annotated[float, msgspec.Meta(ge=0.1)] = 4.0
    """Limit of each call to a network. Below the agent's own deadline, which would otherwise come before the
    reason is known."""


class ParakeetModel(RecognitionModel):
    """What ``model.py`` of ``parakeet_tdt`` runs.

    Parameters of the model: :class:`ParakeetSettings`, and those of
    :class:`parley.models.recognition.RecognitionModel`.

    Raises:
        ModelLoadingError: the weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        export = checkpoint.load_description(parameters)
        settings = parameters.read(ParakeetSettings)
        limits = StreamLimits(
            preroll_ms=settings.preroll_ms,
            window_ms=settings.window_ms,
            cut_search_ms=settings.cut_search_ms,
            max_utterance_ms=settings.max_utterance_ms,
        )
        self._client = InProcessBlockingClient(pb_utils)
        models = RemoteModels(self._client, open_detector(), timeout_s=settings.timeout_s)
        pipeline = OfflinePipeline(export, models, limits)
        super().__init__(pb_utils, parameters, pipeline, languages=export.languages)

    def close(self) -> None:
        """End what runs beside the executions."""
        super().close()
        self._client.close()
