"""What can be changed of the recogniser while a pipeline runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pipecat.services.settings import STTSettings
from pipecat.utils.types import NOT_GIVEN, NotGiven

Lookahead: TypeAlias = Literal[80, 160, 560, 1120]
"""Milliseconds."""


@dataclass
class ParleySTTSettings(STTSettings):
    """What can be changed while the pipeline runs; the stream is then opened anew.

    ``model`` is ``parakeet_tdt``, ``nemotron_streaming``, ``moonshine``, ``whisper`` or
    ``sherpa_onnx``; ``auto``: that
    of the server.

    Parameters:
        phrases: names and words that are expected.
        phrase_weight: how much, 0 to 10.
        partial_interval_ms: new audio between two interim texts (milliseconds). 0: no interim texts.
        lookahead_ms: audio that a streaming model waits for; None: the server's choice.
    """

    phrases: list[str] | NotGiven = field(default_factory=lambda: NOT_GIVEN)
    phrase_weight: float | NotGiven = field(default_factory=lambda: NOT_GIVEN)
    partial_interval_ms: int | NotGiven = field(default_factory=lambda: NOT_GIVEN)
    lookahead_ms: Lookahead | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
