"""The agent's synthesizers, with those that may replace them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from parley.agent.config import AgentConfig
from parley.engines.base import Synthesizer
from parley.engines.fallback import FallbackLimits, FallbackSynthesizer
from parley.engines.registry import SYNTHESIZERS, find_engine
from parley.engines.routed import RoutedSynthesizer
from parley.errors import ModelLoadingError
from parley.inference import InferencePort
from parley.tts.messages import TtsFallback

_log = logging.getLogger(__name__)


def make_synthesizer(
    config: AgentConfig, port: InferencePort, *, timeout_s: float, replaced: Callable[[TtsFallback], None]
) -> Synthesizer:
    """The synthesizers that the settings name, as one that has the voices of all.

    Args:
        config: the settings.
        port: the way to the models.
        timeout_s: of each engine, for its first audio and for each piece that follows (seconds).
        replaced: is told when one takes the place of another.

    Raises:
        ModelLoadingError: there is no synthesizer of such a name, or one is named twice.
    """
    _check_once(config)
    names = _present(config.tts, config.absent_models) or config.tts
    fallbacks = _present(config.tts_fallback, config.absent_models)
    if absent := [name for name in (*config.tts, *config.tts_fallback) if name not in (*names, *fallbacks)]:
        _log.warning("without %s: the server has no weights for it", ", ".join(absent))
    engines = {
        name: find_engine(SYNTHESIZERS, name)(port, timeout_s=timeout_s) for name in (*names, *fallbacks)
    }
    limits = FallbackLimits(
        first_audio_s=config.deadlines.tts_first_audio_s,
        # The agent itself waits for `tts_s`: a replacement must have time to begin before that.
        next_audio_s=config.deadlines.tts_s / 2,
        abort_s=config.deadlines.abort_s,
    )

    def with_fallback(name: str) -> Synthesizer:
        chain = [name, *(other for other in fallbacks if other != name)]
        if len(chain) == 1:
            return engines[name]
        return FallbackSynthesizer([(one, engines[one]) for one in chain], limits, replaced)

    return RoutedSynthesizer([(name, with_fallback(name)) for name in names])


def _present(names: Sequence[str], absent: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in absent)


def _check_once(config: AgentConfig) -> None:
    """A fallback may speak otherwise too, but not in its own place."""
    lists = [config.tts, config.tts_fallback]
    if len(config.tts) == 1:
        lists = [(*config.tts, *config.tts_fallback)]
    for names in lists:
        if len(set(names)) < len(names):
            raise ModelLoadingError(f"a synthesizer is named twice: {', '.join(names)}")
