"""Kokoro's network, with weights that hum."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parent))

from kokoro_weights import FRAME, write_graph, write_weights

from parley.engines.speech import KnownSpeaker
from parley.errors import (
    InferenceError,
    ModelLoadingError,
    UnsupportedLanguageError,
    UnsupportedVoiceError,
    WeightsNotFoundError,
)
from parley.models.kokoro import KokoroModel
from parley.runtime.onnx import Stop, StoppedError
from parley.runtime.parameters import Parameters
from parley.tts.clauses.network import CEILING
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.kokoro.network import IDS, load_network
from parley.tts.kokoro.voices import DEFAULT, DEFAULTS, FILES, KNOWN_VOICES, gain_db, voice_for
from parley.tts.messages import SpeakRequest


def word(phonemes, before="", after=""):
    return PronouncedWord(phonemes, phonemes, 0, 1, before, after)


class FrontEnd:
    def pronounce(self, text):
        return [word(text)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_weights(tmp_path_factory.mktemp("weights") / "kokoro")


@pytest.fixture(scope="module")
def network(folder):
    return load_network(folder, dict.fromkeys(("en", "es", "fr"), FrontEnd()), threads=1)


def test_words_begin_where_their_first_sound_does(network):
    sound = network.make([word("hə", before="“"), word("w", after=",")], "af_heart", Stop())
    # Of the pads one frame each, of all symbols three: “ h ə blank w comma.
    assert sound.begins == [FRAME * (1 + 3), FRAME * (1 + 4 * 3)]
    assert sound.audio.shape == (FRAME * (2 + 6 * 3),)
    assert sound.audio.dtype == np.float32


def test_another_speed_is_that_of_a_copy(network):
    fast = network.at_speed(2.0).make([word("hə"), word("w")], "af_heart", Stop())
    plain = network.make([word("hə"), word("w")], "af_heart", Stop())
    assert len(fast.audio) == len(plain.audio) / 2
    assert fast.begins[0] < plain.begins[0]


def test_the_style_is_that_of_the_voice_and_the_number_of_symbols(network):
    levels = [
        np.abs(network.make([word("h" * length)], voice, Stop()).audio).max()
        for voice, length in (("af_heart", 2), ("af_heart", 5), ("af_heart", 50), ("bm_lewis", 2))
    ]
    np.testing.assert_allclose(levels, [0.102, 0.105, 0.109, 0.372], atol=1e-3)


def test_what_the_network_has_no_symbol_for_is_left_out(network):
    plain, marked = (network.make([word(text)], DEFAULT, Stop()).audio for text in ("hə", "h\u2603ə"))
    np.testing.assert_array_equal(plain, marked)


def test_a_clause_that_is_too_long_is_an_error_of_ours(network):
    with pytest.raises(InferenceError, match="at most 510"):
        network.make([word("h" * 511)], DEFAULT, Stop())
    assert len(network.make([word("h" * 510)], DEFAULT, Stop()).audio)


def test_what_was_stopped_is_not_begun(network):
    stop = Stop()
    stop.request()
    with pytest.raises(StoppedError):
        network.make([word("hə")], DEFAULT, stop)


def test_audio_is_trimmed_and_has_the_level_of_its_voice(network):
    request = SpeakRequest(request_id="a", voice="bm_lewis")
    raw = network.make([word("həw")], "bm_lewis", Stop())
    sound = network.speak([word("həw")], request, Stop())
    heard = sound.make(Stop())
    assert sound.complete
    assert len(heard) <= len(raw.audio)
    loudest = np.abs(raw.audio).max() * 10 ** (gain_db("bm_lewis") / 20)
    assert np.abs(heard).max() / 32767 == pytest.approx(min(loudest, CEILING), rel=0.01)


def test_what_it_cannot_speak_is_refused(network):
    network.check(None, "en")
    network.check("bf_emma", "en-AU")
    with pytest.raises(UnsupportedVoiceError, match="af_heart"):
        network.check("jf_alpha", "en")
    with pytest.raises(UnsupportedLanguageError):
        network.check("af_heart", "ja")


def test_voices_that_are_offered():
    names = [voice.name for voice in KNOWN_VOICES]
    assert (names[0], len(names), len(set(names))) == ("af_heart", 32, 32)
    assert KnownSpeaker(None, model="kokoro").voices == names
    for voice in KNOWN_VOICES:
        assert voice.gender == {"f": "female", "m": "male"}[voice.name[1]]
        assert {"a": "en-us", "b": "en-gb", "e": "es", "f": "fr"}[voice.name[0]] in voice.languages
        assert -6 < gain_db(voice.name) < 9


def test_each_language_has_a_voice_of_its_own():
    for language, voice in DEFAULTS.items():
        assert voice_for(None, f"{language}-XX") == voice
        assert any(known.name == voice and language in known.languages for known in KNOWN_VOICES)
    assert voice_for("em_alex", "es") == "em_alex"


def test_texts_are_pronounced_in_the_language_of_the_request(folder):
    def saying(sound):
        return SimpleNamespace(pronounce=lambda _: [word(sound)])

    network = load_network(folder, {"en": saying("hə"), "es": saying("ola")}, threads=1)
    network.check("ef_dora", "es-MX")
    with pytest.raises(UnsupportedLanguageError, match="espeak-ng, which is not installed"):
        network.check("ff_siwis", "fr")
    assert [network.pronounce("x", language)[0].phonemes for language in ("en-GB", "es")] == ["hə", "ola"]
    spanish, french = (
        network.speak([word("h")], SpeakRequest(request_id="a", language=language), Stop())
        for language in ("es", "fr")
    )
    assert len(spanish.make(Stop()))
    assert len(french.make(Stop()))


def test_a_voice_speaks_its_own_language_only(network):
    network.check("ef_dora", "es-MX")
    network.check(None, "fr")
    with pytest.raises(UnsupportedLanguageError, match=r"'af_heart' does not speak 'es'; only en, en-us"):
        network.check("af_heart", "es")
    with pytest.raises(UnsupportedLanguageError, match="'ef_dora' does not speak 'en'"):
        KnownSpeaker(None, model="kokoro").check_known("ef_dora", "en")
    assert KnownSpeaker(None, model="kokoro").check_known("ef_dora", "es")


def test_symbols_are_those_of_the_checkpoint():
    assert len(IDS) == 114
    assert {symbol: IDS[symbol] for symbol in " .ˈAʤᵻ;"} == {
        " ": 16, ".": 4, "ˈ": 156, "A": 24, "ʤ": 82, "ᵻ": 177, ";": 1,
    }  # fmt: skip


@pytest.mark.parametrize("content", [None, b"", b"1234567", np.full(256, np.nan, "<f4").tobytes()])
def test_a_voice_that_is_not_there_or_broken_is_named(tmp_path, content):
    folder = write_weights(tmp_path / "kokoro")
    path = folder / "voices" / "am_puck.bin"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(ModelLoadingError, match=r"am_puck\.bin"):
        load_network(folder, {"en": FrontEnd()}, threads=1)


def test_a_graph_without_durations_is_refused(tmp_path):
    folder = write_weights(tmp_path / "kokoro")
    write_graph(folder / "kokoro-quantized.onnx", durations="others")
    with pytest.raises(ModelLoadingError, match="kokoro-quantized"):
        load_network(folder, {"en": FrontEnd()}, threads=1)


def test_weights_that_were_brought_before_a_voice_came_name_it_and_the_command(tmp_path):
    folder = tmp_path / "models" / "kokoro-82m"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "voices" / "ef_dora.bin").unlink()
    parameters = Parameters("kokoro", {}, model_dir=tmp_path / "model_repository" / "kokoro", environment={})
    with pytest.raises(WeightsNotFoundError, match=r"without voices/ef_dora\.bin; .*MODEL=kokoro-82m"):
        KokoroModel(None, parameters)
