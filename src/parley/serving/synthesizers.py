"""The agent's synthesizer, with those that may replace it."""

from __future__ import annotations

from collections.abc import Callable

from parley.agent.config import AgentConfig
from parley.engines.base import Synthesizer
from parley.engines.fallback import FallbackLimits, FallbackSynthesizer
from parley.engines.registry import SYNTHESIZERS, find_engine
from parley.errors import ModelLoadingError
from parley.inference import InferencePort
from parley.tts.messages import TtsFallback


def make_synthesizer(
    config: AgentConfig, port: InferencePort, *, timeout_s: float, replaced: Callable[[TtsFallback], None]
) -> Synthesizer:
    """The synthesizer that the settings name.

    Args:
        config: the settings.
        port: the way to the models.
        timeout_s: of each engine, for its first audio and for each piece that follows (seconds).
        replaced: is told when one takes the place of another.

    Raises:
        ModelLoadingError: there is no synthesizer of such a name, or one is named twice.
    """
    names = (config.tts, *config.tts_fallback)
    if len(set(names)) < len(names):
        raise ModelLoadingError(f"a synthesizer is named twice: {', '.join(names)}")
    engines = [(name, find_engine(SYNTHESIZERS, name)(port, timeout_s=timeout_s)) for name in names]
    if len(engines) == 1:
        return engines[0][1]
    limits = FallbackLimits(
        first_audio_s=config.deadlines.tts_first_audio_s,
        # The agent itself waits for `tts_s`: a replacement must have time to begin before that.
        next_audio_s=config.deadlines.tts_s / 2,
        abort_s=config.deadlines.abort_s,
    )
    return FallbackSynthesizer(engines, limits, replaced)
