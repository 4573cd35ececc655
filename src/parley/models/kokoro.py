"""The model ``kokoro`` out of its settings."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import Any

import msgspec

from parley.models.synthesizer import SpeechModel
from parley.runtime.parameters import Parameters, Positive
from parley.runtime.weights import resolve_weights
from parley.tts.clauses.network import FrontEnd
from parley.tts.clauses.synthesizer import ClauseSynthesizer
from parley.tts.english.pronouncer import load_front_end
from parley.tts.espeak_phonemes.client import (
    DIED,
    PHONEME_RESTARTS,
    UNRESPONSIVE,
    PhonemeProcess,
    is_installed,
)
from parley.tts.espeak_phonemes.front_end import VOICES, EspeakFrontEnd
from parley.tts.kokoro.network import load_network
from parley.tts.kokoro.voices import FILES

_log = logging.getLogger(__name__)


class KokoroSettings(msgspec.Struct, frozen=True):
    """Settings of ``kokoro``."""

    threads: Positive = 1
    """CPU threads of the network."""
    max_requests: Positive = 64
    """Requests open at once before more are refused."""


class KokoroModel(SpeechModel):
    """What ``model.py`` of ``kokoro`` runs.

    Spanish and French are pronounced by espeak-ng in a process of its own, where that is installed. English
    does not depend on it.

    Parameters of the model: :class:`KokoroSettings`, ``weights`` (the folder of the graph and the voices),
    and those of :func:`parley.tts.english.pronouncer.load_front_end`.

    Raises:
        ModelLoadingError: weights are missing, or a setting is not usable.
    """

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        settings = parameters.read(KokoroSettings)
        folder = resolve_weights(parameters, "kokoro-82m", FILES)
        self._phonemes = PhonemeProcess() if is_installed() else None
        try:
            front_ends: dict[str, FrontEnd] = {"en": load_front_end(parameters)}
            if self._phonemes is not None:
                front_ends |= {language: EspeakFrontEnd(self._phonemes, language) for language in VOICES}
            network = load_network(folder, front_ends, threads=settings.threads)
            if self._phonemes is None:
                _log.info("espeak-ng is not installed: no Spanish and French")
            elif not self._phonemes.wait_until_tried():
                _log.warning("espeak-ng does not run: no Spanish and French until it does")
        except BaseException:
            self._close_phonemes()
            raise
        synthesizer = ClauseSynthesizer(network, name="kokoro", max_requests=settings.max_requests)
        super().__init__(pb_utils, parameters, synthesizer, families=(PHONEME_RESTARTS,))
        self._name = parameters.model
        self._counted: Counter[str] = Counter()
        if self._phonemes is not None:
            for reason in (DIED, UNRESPONSIVE):
                self.metrics.recorder.count(PHONEME_RESTARTS, 0, model=self._name, reason=reason)
            self.metrics.recorder.collect_with(partial(self._count_restarts, self._phonemes))

    def close(self) -> None:
        """End every request, and the process of espeak-ng."""
        super().close()
        self._close_phonemes()

    def _close_phonemes(self) -> None:
        if self._phonemes is not None:
            self._phonemes.close()

    def _count_restarts(self, phonemes: PhonemeProcess) -> None:
        new = phonemes.restarts() - self._counted
        self._counted += new
        for reason, number in new.items():
            self.metrics.recorder.count(PHONEME_RESTARTS, number, model=self._name, reason=reason)
