"""English text to the words that a network is given."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from parley.runtime.parameters import Parameters
from parley.runtime.weights import cache_dir, resolve_weights
from parley.tts.english import dictionary, network
from parley.tts.english.pronouncer import EnglishPronouncer, PronouncedWord, load_pronouncer
from parley.tts.normalization.nemo import load_grammars
from parley.tts.normalization.normalizer import TextNormalizer

_log = logging.getLogger(__name__)


class EnglishFrontEnd:
    """Writes a text out and looks its words up. Not for use in two threads at once.

    Args:
        normalizer: writes out figures, signs and abbreviations.
        pronouncer: knows how words sound.
    """

    def __init__(self, normalizer: TextNormalizer, pronouncer: EnglishPronouncer) -> None:
        self._normalizer = normalizer
        self._pronouncer = pronouncer

    def pronounce(self, text: str) -> Sequence[PronouncedWord]:
        """The words of a text as they are said; none for a text in a script that cannot be read."""
        pronunciation = self._pronouncer.pronounce(self._normalizer.normalize(text, "en"))
        if pronunciation.skipped:
            # Without the words, which may be the user's.
            _log.warning("%d words cannot be read and are not spoken", len(pronunciation.skipped))
        return pronunciation.words


def load_front_end(parameters: Parameters) -> EnglishFrontEnd:
    """The front end of a model; takes half a minute where grammars have to be compiled first.

    Parameters of the model:
        ``dictionary``, ``letters``: folders of misaki's dictionaries and of g2p-en's network.

    Raises:
        ModelLoadingError: a file is missing, or it or a grammar cannot be read.
    """
    pronouncer = load_pronouncer(
        resolve_weights(parameters, "misaki-en", dictionary.FILES, setting="dictionary"),
        resolve_weights(parameters, "g2p-en", (network.FILE,), setting="letters"),
    )
    grammars = load_grammars(("en",), cache_dir() / "normalization")
    return EnglishFrontEnd(TextNormalizer(grammars, tags=False), pronouncer)
