from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parley.tts.english.dictionary import load_dictionary
from parley.tts.english.network import LetterNetwork
from parley.tts.english.pronouncer import EnglishPronouncer
from parley.tts.normalization.normalizer import TextNormalizer

LETTERS, SOUNDS, SIZE = 29, 74, 12


def random_network(seed=3):
    random = np.random.default_rng(seed)

    def draw(*shape):
        return random.normal(0, 0.6, shape).astype(np.float32)

    arrays = {"enc_emb": draw(LETTERS, SIZE), "dec_emb": draw(SOUNDS, SIZE)}
    for name in ("enc", "dec"):
        arrays |= {f"{name}_{part}": draw(3 * SIZE, SIZE) for part in ("w_ih", "w_hh")}
        arrays |= {f"{name}_{part}": draw(3 * SIZE) for part in ("b_ih", "b_hh")}
    return arrays | {"fc_w": draw(SOUNDS, SIZE), "fc_b": draw(SOUNDS)}


@pytest.fixture(scope="session")
def arrays():
    return random_network()


@pytest.fixture(scope="session")
def dictionary():
    """An excerpt of misaki's dictionaries."""
    return load_dictionary(Path(__file__).parent)


@pytest.fixture(scope="session")
def pronouncer(dictionary, arrays):
    return EnglishPronouncer(dictionary, LetterNetwork(arrays))


@pytest.fixture(scope="session")
def pronounce(pronouncer):
    """Pronounces a text as it is written."""
    normalizer = TextNormalizer({}, tags=False)
    return lambda text: pronouncer.pronounce(normalizer.unchanged(text))
