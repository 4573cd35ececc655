"""Whisper: front end, tokens, prompts, and which texts are taken for speech."""

from __future__ import annotations

import json

import numpy as np
import pytest
from whisper_fakes import (
    CALL,
    END,
    ES,
    HOLA,
    IDS,
    MARKS,
    QUE,
    SILENCE,
    SPACE,
    START,
    TAL,
    Decoder,
    Encoder,
    contents,
    load,
)

from parley.asr.reader import ReadOptions
from parley.asr.readers import FILE
from parley.asr.readers.attention import GeneratedTokens, ReadText
from parley.asr.readers.whisper import FILES, LIMITS
from parley.audio.whisper_mel import WhisperMel
from parley.errors import ModelLoadingError, UnsupportedLanguageError, WeightsNotFoundError
from parley.languages import DETECT

# --- the front end ------------------------------------------------------------------------


@pytest.mark.parametrize("bands", [80, 128])
def test_features_are_those_of_the_reference(bands):
    from transformers import WhisperFeatureExtractor

    rng = np.random.default_rng(bands)
    audio = np.zeros(480_000, np.float32)
    audio[:48_000] = rng.normal(0, 0.1, 48_000) * np.sin(np.arange(48_000) / 900)
    reference = WhisperFeatureExtractor(feature_size=bands)(
        audio[:48_000], sampling_rate=16_000, return_tensors="np"
    )
    features = WhisperMel(bands).compute(audio)
    assert features.shape == (bands, 3_000)
    np.testing.assert_allclose(features, reference["input_features"][0], atol=2e-4)


# --- what is read --------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    """Writes the files of a model; returns their folder."""

    def run(*, files=FILES, tokenizer=None, multilingual=True, **described):
        folder = tmp_path / "model"
        written = contents(tokenizer, multilingual=multilingual)
        for role, file in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(json.dumps(written.get(role, {})))
        if described:
            (folder / FILE).write_text(json.dumps(described))
        return folder

    return run


SECOND = np.full(16_000, 9_000, np.int16)


def test_a_text_is_read_in_the_language_that_is_asked_for(write):
    encoder, decoder = Encoder(), Decoder({HOLA: 9.0}, {QUE: 9.0}, {TAL: 9.0})
    reader = load(write(), decoder, encoder)
    text = reader.read(SECOND, reader.options("es", [], 1.0))
    assert (text.text, text.language) == ("hola que tal", "es")
    assert decoder.fed[0] == [START, ES, IDS["<|transcribe|>"], IDS["<|notimestamps|>"]]
    assert encoder.fed[0]["input_features"].shape == (1, 80, 3_000)


def test_the_language_is_found_out(write):
    decoder = Decoder({HOLA: 9.0}, after_start={ES: 5.0, IDS["<|en|>"]: 3.0, HOLA: 8.0})
    reader = load(write(), decoder)
    assert reader.read(SECOND, ReadOptions(DETECT)).language == "es"
    assert decoder.fed[:2] == [[START], [START, ES, IDS["<|transcribe|>"], IDS["<|notimestamps|>"]]]


def test_a_model_of_english_has_a_shorter_prompt(write):
    decoder = Decoder({HOLA: 9.0})
    reader = load(write(multilingual=False), decoder)
    assert reader.languages == ("en",)
    reader.read(SECOND, ReadOptions())
    assert decoder.fed[0] == [START, IDS["<|notimestamps|>"]]
    with pytest.raises(UnsupportedLanguageError, match="'es'"):
        reader.options("es", [], 1.0)


def test_no_mark_is_written_and_nothing_that_is_suppressed(write):
    first = {END: 9.5, SPACE: 9.3, CALL: 9.2, IDS["<|0.00|>"]: 9.1, HOLA: 9.0}
    decoder = Decoder(first, {CALL: 9.5, ES: 9.3, QUE: 9.0}, {SPACE: 9.0}, {TAL: 9.0})
    reader = load(write(), decoder)
    assert reader.read(SECOND, ReadOptions("es")).text == "hola que tal"


def test_characters_of_several_bytes_are_put_together(write):
    decoder = Decoder({HOLA: 9.0}, {IDS["Ã"]: 9.0}, {IDS["©"]: 9.0})
    reader = load(write(), decoder)
    assert reader.read(SECOND, ReadOptions("es")).text == "hola\N{LATIN SMALL LETTER E WITH ACUTE}"


def test_an_expected_phrase_is_spelled_in_the_models_tokens(write):
    close = ({HOLA: 5.0, TAL: 4.6}, {QUE: 5.0, TAL: 4.6})
    reader = load(write(), Decoder(*close))
    assert reader.read(SECOND, reader.options("es", ["tal tal"], 1.0)).text == "tal tal"


def test_silence_token_gives_no_text(write):
    words = ({HOLA: 1.0}, {QUE: 1.0})
    silent = Decoder(*words, after_start={SILENCE: 9.0})
    spoken = Decoder(*words, after_start={ES: 9.0})
    assert load(write(), silent).read(SECOND, ReadOptions("es")).text == ""
    assert load(write(), spoken).read(SECOND, ReadOptions("es")).text == "hola que"


NO_SCORES = np.zeros((1, 1), np.float32)


def read_text(text, *, logprob=-0.1, silence=0.0, ended=True):
    tokens = GeneratedTokens([1], 0.9, logprob, ended, NO_SCORES, [logprob], NO_SCORES)
    return ReadText(text, (), "es", tokens, silence, 0.0, 0.0)


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (read_text("Buenos días."), ""),
        (read_text(" ... "), "no words"),
        (read_text("Buenos días.", logprob=-1.1), "unsure"),
        (read_text("Buenos días.", logprob=-0.6, silence=0.7), "silence"),
        (read_text("Buenos días.", logprob=-0.3, silence=0.7), ""),
        (read_text("Gracias por ver el vídeo. " * 8, ended=False), "repetitive"),
        (read_text("Gracias. " * 8), ""),
        (read_text("Uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece."), ""),
    ],
)
def test_texts_are_judged(read, problem):
    assert LIMITS.problem(read) == problem


def test_tokens_are_bounded_by_the_audio_and_by_the_decoder(write):
    rules = load(write(), Decoder()).model.rules
    assert rules.limit(16_000) == 14
    assert rules.limit(160) == 8
    assert rules.limit(16_000 * 3_600) == 448 - 4


# --- folders ------------------------------------------------------------------------------


def test_a_folder_says_its_family_and_files(write):
    files = {**FILES, "encoder": "onnx/my_encoder.onnx", "decoder": "onnx/my_decoder.onnx"}
    folder = write(files=files, family="whisper", encoder=files["encoder"], decoder=files["decoder"])
    reader = load(folder, Decoder({HOLA: 9.0}), family="moonshine")
    assert reader.languages == ("en", "es", DETECT)
    assert reader.read(SECOND, ReadOptions("es")).text == "hola"


@pytest.mark.parametrize(
    ("described", "error", "problem"),
    [
        ({"family": "none"}, ModelLoadingError, "known are moonshine, whisper, nemo_ctc"),
        ({"family": "whisper", "vocoder": "x"}, ModelLoadingError, "has vocoder"),
        ({"family": "whisper", "encoder": "x.onnx"}, WeightsNotFoundError, r"without x\.onnx"),
        ({"family": "whisper", "encoder": "/no/x.onnx"}, WeightsNotFoundError, r"without /no/x\.onnx"),
    ],
)
def test_folder_with_another_description_is_refused(write, described, error, problem):
    with pytest.raises(error, match=problem):
        load(write(**described), Decoder())


@pytest.mark.parametrize(
    ("vocab", "marks", "problem"),
    [
        ({"Ġhola": 0, "Ġque": 2}, (), "gaps"),
        ({"Ġhola": 0, "日": 1}, (), "no byte-level BPE"),
        ({"Ġhola": 0}, MARKS[:1], "startoftranscript"),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(write, vocab, marks, problem):
    tokenizer = {
        "model": {"vocab": vocab},
        "added_tokens": [{"id": len(vocab) + at, "content": mark} for at, mark in enumerate(marks)],
    }
    with pytest.raises(ModelLoadingError, match=problem):
        load(write(tokenizer=tokenizer), Decoder())
