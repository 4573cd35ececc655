"""Small networks as sherpa-onnx packs them, read by the library, and folders that end its process.

The networks of ``tests/data/sherpa_onnx`` have the inputs, outputs and metadata of published ones, and one
layer of random weights; ``build/make_small_sherpa.py`` made them, last at commit a2aee9db.
"""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from parley.asr.reader import ReadOptions, RunLimits, Stretch
from parley.asr.readers import load_reader
from parley.asr.readers.sherpa import FAMILIES, SherpaReader
from parley.errors import (
    InferenceError,
    InvalidMessageError,
    ModelLoadingError,
    UnsupportedLanguageError,
    WeightsNotFoundError,
)
from parley.languages import DETECT
from parley.runtime.onnx import OnnxSettings, Stop, StoppedError, open_session
from parley.runtime.onnx_file import OnnxModel

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ROOT / "tests/data/sherpa_onnx"
RECORDINGS = sorted((ROOT / "tests/data/asr_eval").glob("*.*a*"))[:4]
NOTHING = ReadOptions()
MANY = RunLimits(4, 4 * 60 * 16_000, ratio=10.0)


def load(family, folder=None, **options):
    return load_reader(folder or FOLDERS / family, "moonshine", open_session, **options)


@pytest.fixture(scope="module")
def readers():
    return {family: load(family, limits=MANY) for family in FAMILIES}


@pytest.fixture(scope="module")
def recordings():
    return [soundfile.read(file, dtype="int16")[0] for file in RECORDINGS]


def copy(family, folder, **described):
    for file in (FOLDERS / family).iterdir():
        shutil.copy(file, folder)
    (folder / "recognizer.json").write_text(json.dumps({"family": family, **described}))
    return folder


def made(text, tokens, starts, logprobs=(), language=""):
    return SimpleNamespace(
        text=text, tokens=tokens, timestamps=starts, ys_log_probs=list(logprobs), lang=language
    )


def read_made(result, **options):
    """What is made of a result of the library, of audio that begins at 1 s."""
    stream = SimpleNamespace(accept_waveform=lambda *_: None, result=result)
    library = SimpleNamespace(create_stream=lambda: stream, decode_streams=lambda _: None)
    settings = {"token_ms": 40, "lower": False, "least_confidence": 0.0, **options}
    reader = SherpaReader(library, ("en", "zh"), RunLimits(), **settings)
    return reader.read_together([Stretch(np.zeros(16_000, np.int16), NOTHING, 1_000)], Stop())[0]


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_not_finite_are_an_inference_error(score):
    with pytest.raises(InferenceError, match="not finite"):
        read_made(made("a b", ["a", " b"], [0.0, 0.1], [-0.1, score]))


def spoil(file):
    """Replace the largest float weights of a network by NaN."""
    content = file.read_bytes()
    tensors = OnnxModel(content).tensors(file.parent).values()
    weights = max((tensor for tensor in tensors if tensor.dtype == np.float32), key=np.size)
    file.write_bytes(content.replace(weights.tobytes(), np.full_like(weights, np.nan).tobytes()))


@pytest.mark.parametrize("family", ["nemo_ctc", "zipformer_ctc", "paraformer", "sense_voice"])
def test_load_weights_that_are_not_finite_is_a_loading_error(tmp_path, family):
    copy(family, tmp_path)
    spoil(tmp_path / "model.onnx")
    with pytest.raises(ModelLoadingError, match=r"scores of model\.onnx are not finite"):
        load(family, tmp_path)


def test_load_network_that_fails_on_noise_is_no_error(tmp_path):
    # Published Paraformers fail where they find no token in their audio.
    class Failing:
        def __init__(self, file):
            self._session = open_session(file)

        def __getattr__(self, name):
            return getattr(self._session, name)

        def run(self, *_):
            raise RuntimeError("Non-zero status code")

    folder = copy("paraformer", tmp_path)
    assert load_reader(folder, "moonshine", Failing).languages == ("zh", "en")


@pytest.mark.parametrize("family", FAMILIES)
def test_words_have_times_within_their_stretch(readers, recordings, family):
    for audio in recordings:
        text = readers[family].read_all([Stretch(audio, NOTHING, 5_000)])[0]
        assert text.text
        assert text.text == " ".join(word.text for word in text.words)
        assert all(5_000 <= word.start_ms < word.end_ms for word in text.words)
        assert all(one.end_ms <= other.start_ms for one, other in pairwise(text.words))
        assert text.words[-1].end_ms <= 5_000 + len(audio) // 16 + 240
        assert 0.0 < text.confidence <= 1.0


@pytest.mark.parametrize("family", FAMILIES)
def test_stretches_read_together_have_the_texts_that_they_have_alone(readers, recordings, family):
    reader = readers[family]
    together = reader.read_all([Stretch(audio, NOTHING) for audio in recordings])
    assert [text.text for text in together] == [reader.read(audio, NOTHING).text for audio in recordings]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_shortest_audio_is_no_error(readers, family):
    stretches = [Stretch(np.zeros(samples, np.int16), NOTHING) for samples in (0, 1, 400, 3_201)]
    assert not [text for text in readers[family].read_all(stretches) if isinstance(text, Exception)]


def test_a_stopped_reader_begins_no_run(readers, recordings):
    stop = Stop()
    stop.request()
    with pytest.raises(StoppedError):
        readers["zipformer"].read(recordings[0], NOTHING, stop)


def test_a_failure_of_the_library_is_an_inference_error(recordings):
    def fail(_):
        raise RuntimeError("Non-zero status code")

    stream = SimpleNamespace(accept_waveform=lambda *_: None)
    library = SimpleNamespace(create_stream=lambda: stream, decode_streams=fail)
    reader = SherpaReader(library, ("en",), RunLimits(), token_ms=40, lower=False, least_confidence=0.0)
    with pytest.raises(InferenceError, match="sherpa-onnx failed: Non-zero"):
        reader.read(recordings[0], NOTHING)


def test_phrases_are_refused(readers):
    reader = readers["zipformer"]
    assert reader.options("en", [], 1.0).language == "en"
    with pytest.raises(InvalidMessageError, match="no phrases"):
        reader.options("en", ["two"], 1.0)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (made("HE RE", [" HE", " ", "RE"], [0.0, 0.4, 0.8]), [("HE", 1_000, 1_040), ("RE", 1_800, 1_840)]),
        (made("HERE", ["HE", "RE"], [0.0, 0.02]), [("HERE", 1_000, 1_060)]),
        (made("a b", ["a", "b"], [0.1, 0.12]), [("a", 1_100, 1_120), ("b", 1_120, 1_160)]),
        # Paraformer: tokens without spaces, and one that the next continues.
        (made("hello 你好", ["hel@@", "lo", "你", "好"], [0.0, 0.1, 0.2, 0.3]),
         [("hello", 1_000, 1_140), ("你好", 1_200, 1_340)]),
        # Bytes of a character, a token in two words, and a model without times.
        (made("好", ["<0xE5>", "<0xA5>", "<0xBD>"], [0.0, 0.1, 0.2]), []),
        (made("a b c", ["a b", "c"], [0.0, 0.1]), []),
        (made("a b", ["a", "b"], []), []),
    ],
)  # fmt: skip
def test_words_are_made_of_tokens(result, words):
    text = read_made(result)
    assert text.text == result.text
    assert [(word.text, word.start_ms, word.end_ms) for word in text.words] == words


def test_confidence_is_that_of_the_tokens_and_one_without_any():
    logprobs = np.log([0.5, 0.7, 0.9]).tolist()
    text = read_made(made("one two", [" o", "ne", " two"], [0.0, 0.1, 0.2], logprobs))
    assert text.confidence == pytest.approx(0.7)
    assert [word.confidence for word in text.words] == pytest.approx([0.6, 0.9])
    assert read_made(made("one", [" one"], [0.0])).confidence == 1.0
    unsure = read_made(made("one", [" one"], [0.0], [-2.0]), least_confidence=0.5)
    assert (unsure.text, unsure.confidence, unsure.words) == ("", 0.0, ())
    assert read_made(made(" . ", ["."], [0.0])).text == ""


def test_a_vocabulary_of_capitals_writes_small_letters(readers, recordings):
    text = readers["zipformer"].read(recordings[0], NOTHING)
    assert text.text == text.text.lower()
    assert text.words
    assert read_made(made("HE", ["HE"], [0.0]), lower=True).words[0].text == "he"


def test_the_language_that_was_heard_is_one_of_the_models():
    assert read_made(made("hi", [" hi"], [0.0], language="<|en|>")).language == "en"
    assert read_made(made("hi", [" hi"], [0.0], language="<|nospeech|>")).language == ""


def test_sense_voice_of_one_language_reads_it(tmp_path, recordings):
    # The small network writes "en" where its input is English, and "zh" otherwise.
    one = load("sense_voice", copy("sense_voice", tmp_path, languages="en"))
    assert one.languages == ("en",)
    assert one.read(recordings[0], ReadOptions("en")).language == "en"


def test_sense_voice_of_several_languages_detects_and_refuses_a_choice(tmp_path, recordings):
    several = load("sense_voice", copy("sense_voice", tmp_path, languages="zh,en"))
    assert several.languages == (DETECT,)
    assert several.read(recordings[0], several.options(DETECT, [], 1.0)).language == "zh"
    with pytest.raises(UnsupportedLanguageError):
        several.options("en", [], 1.0)


def test_a_folder_lists_its_languages(tmp_path):
    reader = load("zipformer_ctc", copy("zipformer_ctc", tmp_path, languages="de, fr"))
    assert reader.languages == ("de", "fr")
    with pytest.raises(UnsupportedLanguageError):
        reader.options("en", [], 1.0)


@pytest.mark.parametrize("family", ["zipformer_ctc", "paraformer", "sense_voice"])
def test_folder_of_another_family_is_refused_before_it_is_loaded(tmp_path, family):
    copy(family, tmp_path)
    (tmp_path / "recognizer.json").unlink()
    with pytest.raises(
        ModelLoadingError, match=r"has no .*no recognizer\.json, so .* family nemo_ctc.*docs/"
    ):
        load_reader(tmp_path, "nemo_ctc", open_session)


def test_the_library_is_for_cpus():
    with pytest.raises(ModelLoadingError, match="device"):
        load("zipformer", onnx=OnnxSettings(device="gpu"))


def test_files_that_cannot_be_used_are_loading_errors(tmp_path):
    copy("zipformer", tmp_path)
    (tmp_path / "encoder.onnx").write_bytes(b"no network")
    with pytest.raises(ModelLoadingError, match="sherpa-onnx cannot load"):
        load("zipformer", tmp_path)
    (tmp_path / "joiner.onnx").unlink()
    with pytest.raises(WeightsNotFoundError, match=r"without joiner\.onnx"):
        load("zipformer", tmp_path)
