"""A voice of Piper that hums, spoken in pieces."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parent))

from tiny_voice import HOP, RATE, write_voice

from parley.engines.speech import KnownSpeaker
from parley.errors import (
    InferenceError,
    InvalidModelOutputError,
    ModelLoadingError,
    UnsupportedLanguageError,
    UnsupportedVoiceError,
)
from parley.runtime.onnx import Stop, StoppedError
from parley.runtime.onnx_file import OnnxModel, PartInput
from parley.tts.clauses.network import Level
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.messages import SpeakRequest
from parley.tts.piper.network import PIECES, PiperNetwork, StreamedSound
from parley.tts.piper.notation import Notation, read_settings
from parley.tts.piper.parts import PiperStyle, Prior, VoiceParts

STYLE = PiperStyle(length=1.0, noise=0.5, rhythm_noise=0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_voice(tmp_path_factory.mktemp("weights") / "piper-joe")


@pytest.fixture(scope="module")
def parts(folder):
    return VoiceParts(folder / "en_US-joe-medium.onnx")


@pytest.fixture(scope="module")
def notation(folder):
    return Notation(read_settings(folder / "en_US-joe-medium.onnx.json").phoneme_id_map)


@pytest.fixture(scope="module")
def network(parts, notation):
    return PiperNetwork(parts, notation, STYLE, RATE, None)


def words_of(text):
    begins, words = 0, []
    for word in text.split():
        bare = word.rstrip(".,?")
        words.append(PronouncedWord(bare, bare, begins, begins + len(word), "", word[len(bare) :]))
        begins += len(word) + 1
    return words


SENTENCE = words_of("hˈAlO tə ðə wˈɛst ænd ɪts mˈɛni bˈɔɹdəɹz, ɔɹ sˈO wi hˈOp tədˈA, ˈɪf wi dˈu ɪt wˈɛl.")


def spoken(network, words=SENTENCE, seed=1, **fields):
    sound = network.speak(words, SpeakRequest(request_id="a", seed=seed, **fields), Stop())
    pieces = []
    while not sound.complete:
        pieces.append(sound.make(Stop()))
    return sound, pieces


def test_the_pieces_are_the_whole(parts):
    """Wherever it is cut, and with the same limiter at work."""
    random = np.random.default_rng(5)
    frames = random.integers(1, 5, 120)
    mean, spread = (random.standard_normal((8, 120)).astype(np.float32) for _ in range(2))
    prior = Prior(mean, np.abs(spread), frames)
    level = Level(9.0, RATE)

    def sound():
        random = np.random.default_rng(6)
        return StreamedSound(parts, prior, (3, 60, 118), noise=0.5, random=random, level=level, fade=100)

    streamed = sound()
    pieces = []
    while not streamed.complete:
        pieces.append(streamed.make(Stop()))
    whole = sound()
    whole._pieces = iter([10_000])
    (expected,) = [whole.make(Stop())]
    assert whole.complete
    assert len(pieces) > 4
    assert len(pieces[0]) == PIECES[0] * HOP
    assert np.abs(expected).max() > 0.88 * 32767  # the limiter is at work
    np.testing.assert_allclose(np.concatenate(pieces), expected, atol=1)
    assert expected[0] == expected[-1] == 0


def test_words_begin_where_their_first_symbol_does(network, parts, notation):
    sound, pieces = spoken(network)
    symbols = notation.symbols(SENTENCE)
    prior = parts.encode(symbols.ids, STYLE, np.random.default_rng((1, 0)), Stop())
    frames = np.concatenate([[0], np.cumsum(prior.frames)])
    starts = frames[list(symbols.starts)]
    cut = max(0, starts[0] - 4)
    assert list(sound.begins) == [(start - cut) * HOP for start in starts[:-1]]
    assert sum(map(len, pieces)) == (min(starts[-1] + 3, frames[-1]) - cut) * HOP


def test_a_seed_decides_everything(network):
    first, again, other = (np.concatenate(spoken(network, seed=seed)[1]) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert len(other) != len(first) or not np.array_equal(first, other)
    unseeded = [np.concatenate(spoken(network, seed=None)[1]) for _ in range(2)]
    assert not np.array_equal(*unseeded) if len(unseeded[0]) == len(unseeded[1]) else True


def test_a_larger_length_scale_speaks_slower(parts, notation):
    lengths = [
        sum(map(len, spoken(PiperNetwork(parts, notation, PiperStyle(scale, 0.5, 0.0), RATE, None))[1]))
        for scale in (1.0, 2.0)
    ]
    assert lengths[1] == pytest.approx(2 * lengths[0], rel=0.05)


def test_what_is_stopped_ends(network):
    stop = Stop()
    sound = network.speak(SENTENCE, SpeakRequest(request_id="a"), stop)
    sound.make(stop)
    stop.request()
    with pytest.raises(StoppedError):
        sound.make(stop)
    with pytest.raises(StoppedError):
        network.speak(SENTENCE, SpeakRequest(request_id="a"), stop)


def test_what_it_cannot_speak_is_refused(network):
    network.check(None, "en")
    network.check("joe", "en-US")
    with pytest.raises(UnsupportedVoiceError, match="joe"):
        network.check("af_heart", "en")
    with pytest.raises(UnsupportedLanguageError):
        network.check("joe", "de")
    assert KnownSpeaker(None, model="piper").voices == ["joe"]


def test_a_voice_that_speaks_for_ever_has_failed(tmp_path, notation):
    parts = VoiceParts(write_voice(tmp_path / "slow", frames=90.0) / "en_US-joe-medium.onnx")
    with pytest.raises(InvalidModelOutputError, match="would take"):
        parts.encode(notation.symbols(SENTENCE).ids, STYLE, np.random.default_rng(0), Stop())


def test_a_voice_that_is_silent_has_failed(tmp_path, notation):
    parts = VoiceParts(write_voice(tmp_path / "silent", loudness=1e-6) / "en_US-joe-medium.onnx")
    with pytest.raises(InvalidModelOutputError, match="silence"):
        spoken(PiperNetwork(parts, notation, STYLE, RATE, None))


def test_what_is_no_number_is_not_heard(parts):
    prior = Prior(np.full((8, 9), np.nan, np.float32), np.ones((8, 9), np.float32), np.full(9, 9))
    random = np.random.default_rng(0)
    sound = StreamedSound(parts, prior, (0, 9), noise=0.5, random=random, level=Level(0, RATE), fade=100)
    with pytest.raises(InvalidModelOutputError, match="not audio"):
        sound.make(Stop())


def test_symbols_out_of_range_are_a_failure_of_the_model(parts):
    with pytest.raises(InferenceError):
        parts.encode((1, 5_000, 2), STYLE, np.random.default_rng(0), Stop())


@pytest.mark.parametrize(("part", "context"), [("flow", 34), ("decoder", 15)])
def test_a_network_that_looks_further_is_refused(tmp_path, part, context):
    folder = write_voice(tmp_path / "voice", **{part: context})
    with pytest.raises(ModelLoadingError, match="in pieces"):
        VoiceParts(folder / "en_US-joe-medium.onnx")


@pytest.mark.parametrize("content", [None, b"", b"hello", b"\x3a\xff\xff\xff"])
def test_a_file_that_is_no_network_is_named(tmp_path, content):
    path = tmp_path / "voice.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelLoadingError):
        VoiceParts(path)


def test_a_part_computes_what_it_is_asked_for(folder):
    import onnxruntime

    model = OnnxModel((folder / "en_US-joe-medium.onnx").read_bytes())
    part = model.part([PartInput("/Mul_7_output_0", 3)], ["waves"])
    session = onnxruntime.InferenceSession(part)
    assert [tensor.name for tensor in session.get_inputs()] == ["/Mul_7_output_0"]
    (waves,) = session.run(None, {"/Mul_7_output_0": np.ones((1, 8, 20), np.float32)})
    assert waves.shape == (1, HOP, 20)
    whole = (folder / "en_US-joe-medium.onnx").stat().st_size
    assert len(part) < whole  # without the weights of the others


def test_a_part_that_is_not_there_is_named(folder):
    model = OnnxModel((folder / "en_US-joe-medium.onnx").read_bytes())
    with pytest.raises(ModelLoadingError, match="/nothing"):
        model.part([], ["/nothing"])
    with pytest.raises(ModelLoadingError, match="input"):
        model.part([], ["/enc_p/Split_output_0"])
