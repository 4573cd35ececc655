"""Piper's voice Joe with its own weights, in this process and on a real server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import eval_voices
import fake_pb_utils
from clicks import seam_scores
from speech_sink import Sink

from parley.canaries.asking import ask_canaries
from parley.launcher.options import ROOT, ServerOptions
from parley.launcher.server import EmbeddedServer
from parley.models.piper import PiperModel
from parley.runtime.parameters import Parameters
from parley.runtime.weights import MODELS_DIR_VARIABLE
from parley.tts.english import pronouncer as english
from parley.tts.english.dictionary import FILES
from parley.tts.english.network import FILE
from parley.tts.english.pronouncer import load_pronouncer
from parley.tts.english.sounds import has_vowel
from parley.tts.messages import SpeakRequest
from parley.tts.normalization.normalizer import TextNormalizer
from parley.tts.piper.voices import SETTINGS, VOICE
from parley_stages import Synthesis, open_server
from parley_torch.tts.voices.enrollment.recordings import loudness_lufs

MODELS = Path(os.environ.get(MODELS_DIR_VARIABLE) or ROOT / "models")
NEEDED = [
    *(MODELS / "piper-joe" / name for name in (VOICE, SETTINGS)),
    *(MODELS / "misaki-en" / name for name in FILES),
    MODELS / "g2p-en" / FILE,
]
MISSING = [str(path) for path in NEEDED if not path.is_file()]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"without the weights of piper: {', '.join(MISSING)}")
TEXT = "Your appointment is confirmed, and I have sent you a reminder. Is there anything else?"
RATE = 22_050


@pytest.fixture(scope="module")
def synthesizer():
    patch = pytest.MonkeyPatch()
    # Compiling them takes half a minute, and these texts need none.
    patch.setattr(english, "load_grammars", lambda languages, cache: {})
    model = PiperModel(fake_pb_utils, Parameters("piper", {}, environment={MODELS_DIR_VARIABLE: str(MODELS)}))
    patch.undo()
    yield model.synthesizer
    model.close()


def say(synthesizer, text=TEXT, request_id="a", seed=1, **fields):
    sink = Sink()
    synthesizer.submit(SpeakRequest(request_id=request_id, text=text, seed=seed, **fields), sink)
    return sink


def test_piper_speaks(synthesizer):
    sink = say(synthesizer)
    samples = sink.samples
    assert 4.0 < len(samples) / RATE < 7.0
    assert [TEXT[word.start_char : word.end_char] for word in sink.words] == TEXT.split()
    assert abs(loudness_lufs(samples.astype(np.float32) / 32768, RATE) + 19) < 3
    seams = [chunk.offset for chunk in sink.chunks[1:]]
    assert len(seams) >= 5
    assert seam_scores(samples, seams, RATE).max() < 2


def test_words_are_heard_where_their_marks_are(synthesizer):
    """Each "papa" begins with a silence: the lips are closed."""
    text = "Papa, papa, papa, papa."
    sink = say(synthesizer, text)
    size = RATE // 200
    quiet = sink.quiet(size, 1e-4)
    for word in sink.words[1:]:
        at = word.at_sample // size
        assert quiet[at - 8 : at + 4].any()
        assert not quiet[at : at + 40].all()


def test_the_seed_decides(synthesizer):
    first, again, other = (say(synthesizer, seed=seed).samples for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert len(first) != len(other) or not np.array_equal(first, other)


@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
def test_other_rates(synthesizer, rate):
    sink = say(synthesizer, sample_rate=rate)
    assert len(sink.samples) / rate == pytest.approx(len(say(synthesizer).samples) / RATE, abs=0.001)
    assert {chunk.sample_rate for chunk in sink.chunks} == {rate}


def test_an_abort_ends_it_in_the_midst(synthesizer):
    sink = say(synthesizer, TEXT * 8)
    assert sink.heard.wait(30)
    synthesizer.abort("a")
    assert sink.ended.wait(5)
    length = sum(map(len, sink.audio))
    assert length < len(say(synthesizer, TEXT * 8, "b").samples) / 2
    assert sum(map(len, sink.audio)) == length


def test_a_short_request_does_not_wait_for_a_long_one(synthesizer):
    long = say(synthesizer, TEXT * 8, "long")
    assert long.heard.wait(30)
    short = say(synthesizer, "Yes, of course.", "short")
    assert short.ended.wait(30)
    assert not long.ended.is_set()
    assert len(long.samples) > len(short.samples)


@pytest.fixture(scope="module")
def pronouncer():
    return load_pronouncer(MODELS / "misaki-en", MODELS / "g2p-en")


def test_no_name_is_lost(pronouncer):
    names = (ROOT / "tests/data/rare_names.txt").read_text().split()
    assert len(names) >= 500
    normalizer = TextNormalizer({}, tags=False)
    for name in names:
        said = pronouncer.pronounce(normalizer.unchanged(name))
        assert not said.skipped
        assert said.words, name
        assert all(has_vowel(word.phonemes) for word in said.words), name


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("The FBI read the record.", "ði ˌɛfbˌiˈI ɹˈid ðə ɹˈɛkəɹd."),
        ("Googled bluetoothed smartwatches", "ɡˈuɡᵊld blˈutˌuθt smˈɑɹtwɑʧᵻz"),
    ],
)
def test_words_of_the_whole_dictionaries(pronouncer, text, phonemes):
    assert pronouncer.pronounce(TextNormalizer({}, tags=False).unchanged(text)).phonemes == phonemes


async def test_clients_hear_it_on_a_real_server(tmp_path):
    options = ServerOptions(
        profile="open",
        load_models=("piper",),
        state_dir=tmp_path,
        grpc_port=0,
        http_port=0,
        metrics_port=0,
        environment={MODELS_DIR_VARIABLE: str(MODELS)},
    )
    with EmbeddedServer(options) as server:
        async with (
            open_server(server.endpoints.grpc) as connection,
            Synthesis(connection, model="piper", timeout_s=60.0) as synthesis,
        ):
            assert [voice.voice_id for voice in await synthesis.voices()] == ["joe"]
            async with synthesis.speak("It is $5 at 7:30.", voice="joe") as speech:
                pieces = [piece async for piece in speech]
        assert {piece.sample_rate for piece in pieces} == {RATE}
        assert [word.text for piece in pieces for word in piece.words] == "It is $5 at 7:30.".split()
        results = ask_canaries(server.endpoints.grpc, {"piper": ""}, 20.0)
    assert {result.model: result.detail for result in results if not result.ok} == {}


class DeafEar:
    """Hears nothing."""

    def __init__(self, folder):
        pass

    def hear(self, audio):
        return ""

    def words(self, text):
        return text.split()


class FixedRatings:
    """In the place of DNSMOS."""

    def __init__(self, file):
        pass

    def rate(self, audio):
        return np.array([4.0, 3.5, 3.25])


def test_the_evaluation_of_voices_lets_them_speak(monkeypatch, capsys, tmp_path):
    sentence = tmp_path / "sentences.txt"
    sentence.write_text(eval_voices._SENTENCES.read_text().splitlines()[0])
    monkeypatch.setattr(eval_voices, "_SENTENCES", sentence)
    monkeypatch.setattr(eval_voices, "_WEIGHTS", MODELS)
    monkeypatch.setattr(english, "load_grammars", lambda languages, cache: {})
    monkeypatch.setattr(eval_voices, "Ear", DeafEar)
    monkeypatch.setattr(eval_voices, "Dnsmos", FixedRatings)
    monkeypatch.setattr(sys, "argv", ["eval-voices", "--models", "piper"])
    assert eval_voices.main() == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("piper")
    assert "100.00 % | 4.00 / 3.50 / 3.25 |" in line
    assert line.endswith("word errors")
