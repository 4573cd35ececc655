"""The real espeak-ng library, where it is installed."""

import numpy as np
import pytest

pytest.importorskip("espeakng_loader")

from parley.errors import ModelLoadingError
from parley.tts import espeak_library
from parley.tts.espeak import LANGUAGES, VOICES, voice_file
from parley.tts.espeak_library import EspeakLibrary


@pytest.fixture(scope="module")
def library():
    library = EspeakLibrary()  # its state is global: one for all tests
    assert library.set_voice(voice_file(None, "en"))
    return library


def speak(library, text, take=None):
    buffers, words = [], []

    def on_audio(audio, events):
        buffers.append(audio)
        words.extend(events)
        return take is None or len(buffers) < take

    library.speak(text, on_audio)
    return buffers, words


def test_every_offered_voice_exists(library):
    for voice in VOICES:
        for language in LANGUAGES:
            assert library.set_voice(voice_file(voice, language)), (voice, language)
            speak(library, "a")  # every change of voice leaves an event for the next text
    assert not library.set_voice("no/such-voice")
    library.set_voice(voice_file(None, "en"))


def test_audio_and_words(library):
    text = "Hello, the weather in Zürich is fine."
    buffers, words = speak(library, text)
    audio = np.concatenate(buffers)
    assert library.sample_rate == 22050
    assert audio.dtype == np.int16
    assert 1.5 < len(audio) / library.sample_rate < 4
    assert np.abs(audio).max() > 3000
    starts = [text[word.position :].split(maxsplit=1)[0] for word in words]
    assert starts == text.split()
    times = [word.at_sample for word in words]
    assert times == sorted(times)
    assert times[-1] < len(audio)
    assert max(map(len, buffers)) <= 0.07 * library.sample_rate


def test_positions_count_characters_not_bytes(library):
    text = "é é é ü ß word"
    _, words = speak(library, text)
    assert text[words[-1].position :] == "word"


def test_stops_within_one_buffer(library):
    buffers, _ = speak(library, "one two three four five six seven eight", take=2)
    assert len(buffers) == 2
    assert len(speak(library, "Again.")[0]) > 2


def test_markup_is_text(library):
    plain = np.concatenate(speak(library, "h@l'oU")[0])
    marked = np.concatenate(speak(library, "[[h@l'oU]]")[0])
    assert len(marked) >= 0.9 * len(plain)  # as phonemes it would be one short word
    silent = np.concatenate(speak(library, '<break time="5s"/> hello')[0])
    assert len(silent) / library.sample_rate < 4.5


def test_errors_of_the_callback_are_passed_on(library):
    def on_audio(audio, events):
        raise KeyError("x")

    with pytest.raises(KeyError):
        library.speak("Hello.", on_audio)
    assert speak(library, "Fine.")[0]


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "espeakng_loader", None)
    with pytest.raises(ModelLoadingError, match=r"'\.\[espeak\]'"):
        espeak_library.EspeakLibrary()
