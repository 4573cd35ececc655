"""Kokoro with its real weights, in this process and on a real server."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from speech_sink import Sink, open_front_end

from parley.canaries.asking import ask_canaries
from parley.errors import UnsupportedVoiceError
from parley.launcher.options import ServerOptions
from parley.launcher.server import EmbeddedServer
from parley.runtime.weights import MODELS_DIR_VARIABLE
from parley.tts.clauses.network import trim
from parley.tts.clauses.synthesizer import ClauseSynthesizer
from parley.tts.kokoro.network import SAMPLE_RATE, load_network
from parley.tts.kokoro.voices import KNOWN_VOICES
from parley.tts.messages import SpeakRequest
from parley_stages import Synthesis, open_server
from parley_torch.tts.voices.enrollment.recordings import loudness_lufs

MODELS = Path(os.environ.get(MODELS_DIR_VARIABLE) or Path(__file__).parents[2] / "models")
MISSING = [name for name in ("kokoro-82m", "misaki-en", "g2p-en") if not (MODELS / name).is_dir()]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no weights in {MODELS}: {', '.join(MISSING)}")
TEXT = "Your appointment is confirmed, and I have sent you a reminder."


@pytest.fixture(scope="module")
def kokoro():
    synthesizer = ClauseSynthesizer(
        load_network(MODELS / "kokoro-82m", {"en": open_front_end(MODELS)}, threads=1), name="kokoro"
    )
    yield synthesizer
    synthesizer.close()


def say(kokoro, request_id, text=TEXT, **fields):
    sink = Sink()
    kokoro.submit(SpeakRequest(request_id=request_id, text=text, **fields), sink)
    return sink


@pytest.fixture(scope="module")
def spoken(kokoro):
    return say(kokoro, "spoken")


def test_all_words_are_spoken_at_a_natural_pace(spoken):
    seconds = len(spoken.samples) / SAMPLE_RATE
    assert 3.0 < seconds < 6.0
    marks = spoken.words
    assert [TEXT[mark.start_char : mark.end_char] for mark in marks] == TEXT.split()
    gaps = np.diff([mark.at_sample for mark in marks]) / SAMPLE_RATE
    assert gaps.min() > 0.03
    assert gaps.max() < 1.5


def test_a_word_is_heard_where_its_mark_is(spoken):
    marks = spoken.words
    after_pause = next(mark for mark in marks if TEXT[mark.start_char :].startswith("and"))
    size = SAMPLE_RATE // 20
    levels = [np.abs(spoken.samples[at : at + size].astype(int)).max() for at in
              (after_pause.at_sample - 2 * size, after_pause.at_sample + 2 * size)]  # fmt: skip
    assert levels[1] > 10 * levels[0]


def test_speech_has_the_set_level_without_clipping(spoken):
    assert loudness_lufs(spoken.samples.astype(np.float32) / 32768, SAMPLE_RATE) == pytest.approx(-19, abs=2)
    assert np.abs(spoken.samples.astype(int)).max() < 0.9 * 32767


@pytest.mark.parametrize("voice", ["af_nova", "am_puck", "bf_isabella", "bm_lewis"])
def test_voices_are_equally_loud(kokoro, voice):
    samples = say(kokoro, voice, "I can help you with that.", voice=voice, sample_rate=16_000).samples
    assert loudness_lufs(samples.astype(np.float32) / 32768, 16_000) == pytest.approx(-19, abs=2)


def test_pauses_between_clauses_begin_and_end_without_clicks(spoken):
    silent = np.concatenate([[0], (spoken.samples == 0).view(np.int8), [0]])
    edges = np.flatnonzero(np.diff(silent))
    pauses = [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end - start > 1_000]
    assert pauses
    steps = np.abs(np.diff(spoken.samples.astype(int)))
    for start, end in pauses:
        assert 0.02 < (end - start) / SAMPLE_RATE < 0.5
        near = np.concatenate([steps[max(0, start - 50) : start], steps[end : end + 50]])
        assert near.max(initial=0) < 300
    assert trim(spoken.samples.astype(np.float32), SAMPLE_RATE).cut < 0.1 * SAMPLE_RATE


def test_the_same_text_sounds_the_same_and_another_voice_does_not(kokoro):
    first, again = (say(kokoro, name, "Good morning.").samples for name in ("first", "again"))
    other = say(kokoro, "other", "Good morning.", voice="bm_george").samples
    np.testing.assert_array_equal(first, again)
    assert len(other) != len(first) or not np.array_equal(first, other)


def test_a_request_is_stopped_in_the_middle_of_a_clause(kokoro):
    sink = say(kokoro, "stopped", 20 * "This goes on and on for a very long time. ")
    assert sink.heard.wait(60)
    kokoro.abort("stopped")
    assert sink.ended.wait(30)
    assert sum(map(len, sink.audio)) < 30 * SAMPLE_RATE


def test_every_voice_has_a_style_of_its_own():
    styles = {(MODELS / "kokoro-82m" / "voices" / f"{voice.name}.bin").read_bytes() for voice in KNOWN_VOICES}
    assert len(styles) == len(KNOWN_VOICES)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = ServerOptions(
        profile="open",
        load_models=("kokoro", "espeak"),
        state_dir=tmp_path_factory.mktemp("server"),
        grpc_port=0,
        http_port=0,
        metrics_port=0,
        environment={MODELS_DIR_VARIABLE: str(MODELS)},
    )
    with EmbeddedServer(options) as running:
        yield running


async def test_clients_route_voices_on_a_real_server(server):
    async with (
        open_server(server.endpoints.grpc) as connection,
        Synthesis(connection, model="kokoro,espeak", timeout_s=60.0) as synthesis,
    ):
        voices = {voice.voice_id: voice.synthesizer for voice in await synthesis.voices()}
        assert (voices["af_heart"], voices["man-1"], len(voices)) == ("kokoro", "espeak", 36)
        rates = {}
        for voice in ("bf_emma", "espeak/woman-1"):
            async with synthesis.speak("It is $5 at 7:30.", voice=voice) as speech:
                pieces = [piece async for piece in speech]
            rates[voice] = pieces[0].sample_rate
            assert [word.text for piece in pieces for word in piece.words] == "It is $5 at 7:30.".split()
        assert rates == {"bf_emma": SAMPLE_RATE, "espeak/woman-1": 22_050}
        async with synthesis.speak(10 * "This goes on for a long time. ") as speech:
            await anext(speech)
        with pytest.raises(UnsupportedVoiceError):
            await synthesis.check_voice("jf_alpha")


def test_the_canaries_are_answered(server):
    results = ask_canaries(server.endpoints.grpc, {"kokoro": "", "espeak": ""}, 20.0)
    assert {result.model: result.detail for result in results if not result.ok} == {}
