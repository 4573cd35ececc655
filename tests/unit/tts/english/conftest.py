from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from random_letters import random_network

from parley.tts.english.dictionary import load_dictionary
from parley.tts.english.network import LetterNetwork
from parley.tts.english.pronouncer import EnglishPronouncer
from parley.tts.normalization.normalizer import TextNormalizer


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
