"""The families against sherpa-onnx, on the same small networks and recordings; runs of several stretches."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import soundfile
from frame_fakes import EXPECTED, FAMILIES, FOLDERS, ROOT, changing, load

from parley.asr.checkpoint import ParakeetConfig
from parley.asr.families import load_model, new_reader
from parley.asr.features.log_mel import LogMel
from parley.asr.segments.reader import ReadOptions, RunLimits, Stretch
from parley.errors import InferenceError, InvalidMessageError, ModelLoadingError, UnsupportedLanguageError
from parley.languages import DETECT
from parley.runtime.onnx import Stop, StoppedError, open_session

BY_SHERPA = [(family, entry) for family in FAMILIES if family != "nemo_ctc" for entry in EXPECTED[family]]
MANY = RunLimits(8, 8 * 60 * 16_000, ratio=10.0)
MODEL_FILES = dict.fromkeys(FAMILIES, "model.onnx") | {"zipformer": "encoder.onnx"}
NOTHING = ReadOptions()


def recording(entry):
    return soundfile.read(ROOT / "tests/data/asr_eval" / entry["file"], dtype="int16")[0]


def recordings(family):
    return [recording(entry) for entry in EXPECTED[family]]


def spelled(text):
    return " ".join(text.lower().split())


@pytest.mark.parametrize(
    ("family", "entry"), BY_SHERPA, ids=[f"{family}-{entry['file']}" for family, entry in BY_SHERPA]
)
def test_tokens_times_and_texts_are_those_of_sherpa_onnx(family, entry):
    model = load(family)
    audio = recording(entry)
    features = model.features(audio.astype(np.float32) / 32_768)
    (row,) = model.network.run([features], [NOTHING], Stop()).rows
    lines = (FOLDERS / family / "tokens.txt").read_text(encoding="utf-8").splitlines()
    symbols = [line.split(" ")[0].replace("▁", " ") for line in lines]
    assert [symbols[token] for token in row.tokens.ids] == entry["tokens"]
    assert (row.tokens.frames * model.frame_ms).tolist() == entry["times_ms"]
    assert row.timed
    text = new_reader(model).read(audio, NOTHING)
    assert text.text == spelled(entry["text"])
    assert len(entry["tokens"]) > 10


def test_features_of_nemo_are_nemos_and_not_kaldis():
    audio = recordings("nemo_ctc")[0].astype(np.float32) / 32_768
    mel = LogMel(ParakeetConfig(features_size=80))
    assert np.array_equal(load("nemo_ctc").features(audio).T, mel.normalized(mel.offline(audio)))


def test_a_row_of_nemo_has_a_frame_for_each_begun_eight():
    model = load("nemo_ctc")
    session = open_session(FOLDERS / "nemo_ctc/model.onnx")
    features = model.features(recordings("nemo_ctc")[0].astype(np.float32) / 32_768)
    (scores,) = session.run(
        ["logprobs"], {"audio_signal": features.T[None], "length": np.array([len(features)])}
    )
    expected, before = [], None
    for frame, likeliest in enumerate(scores[0].argmax(axis=1).tolist()):
        if likeliest not in (before, scores.shape[2] - 1):
            expected.append((likeliest, frame))
        before = likeliest
    (row,) = model.network.run([features], [NOTHING], Stop()).rows
    assert list(zip(row.tokens.ids.tolist(), row.tokens.frames.tolist(), strict=True)) == expected
    # sherpa-onnx has Kaldi's features with NeMo's settings: near to NeMo's, but not the same.
    theirs = EXPECTED["nemo_ctc"][0]["times_ms"]
    assert len({frame * 80 for _, frame in expected} & set(theirs)) > len(theirs) // 2


@pytest.mark.parametrize("family", FAMILIES)
def test_stretches_that_are_read_together_are_read_as_they_are_alone(family):
    open_network = changing(MODEL_FILES[family])
    reader = new_reader(load(family, open_network), limits=MANY)
    stretches = [Stretch(audio, NOTHING) for audio in recordings(family)]
    before = len(open_network.changed.fed)
    together = reader.read_all(stretches)
    assert len(open_network.changed.fed) == before + 1
    for stretch, text in zip(stretches, together, strict=True):
        alone = reader.read(stretch.audio, NOTHING)
        assert text.text == alone.text != ""
        assert [(word.text, word.start_ms, word.end_ms) for word in text.words] == [
            (word.text, word.start_ms, word.end_ms) for word in alone.words
        ]
        assert text.confidence == pytest.approx(alone.confidence, abs=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_words_lie_within_their_stretch_and_count_from_its_beginning(family):
    reader = new_reader(load(family))
    audio = recordings(family)[0]
    plain, later = (reader.read_all([Stretch(audio, NOTHING, start)])[0] for start in (0, 5_000))
    assert plain.text == " ".join(word.text for word in plain.words)
    ends = [(word.start_ms, word.end_ms) for word in plain.words]
    assert all(start < end for start, end in ends)
    assert all(start >= 0 and end <= len(audio) // 16 + 240 for start, end in ends)
    assert sorted(ends) == ends
    assert [(start + 5_000, end + 5_000) for start, end in ends] == [
        (word.start_ms, word.end_ms) for word in later.words
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_that_is_not_finite_fails_alone(family):
    audio = recordings(family)

    def spoiled(results):
        if len(results[0]) > 1 or spoiled.alone == 1:
            results[0] = results[0].copy()
            results[0][min(1, len(results[0]) - 1)] = np.nan
        spoiled.alone += len(results[0]) == 1
        return results

    spoiled.alone = 0
    file = MODEL_FILES[family]
    reader = new_reader(load(family, changing(file, change=spoiled)), limits=MANY)
    good, bad, other = reader.read_all([Stretch(own, NOTHING) for own in audio[:3]])
    assert good.text
    assert other.text
    assert isinstance(bad, InferenceError)
    assert "not finite" in str(bad)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_shortest_audio_is_no_exception(family):
    reader = new_reader(load(family), limits=MANY)
    texts = reader.read_all([Stretch(np.zeros(samples, np.int16), NOTHING) for samples in (0, 1, 400, 3_201)])
    assert not [text for text in texts if isinstance(text, Exception)]


def test_an_expected_phrase_wins_a_close_race_and_nothing_else():
    for family in ("zipformer_ctc", "zipformer"):
        reader = new_reader(load(family))
        audio = recordings(family)[1]
        plain = reader.read(audio, NOTHING).text
        boosted = reader.read(audio, reader.options("en", ["two there"], 8.0)).text
        assert boosted.split().count("two") > plain.split().count("two")
        assert reader.read(audio, reader.options("en", ["two there"], 0.0)).text == plain
        with pytest.raises(InvalidMessageError):
            reader.options("en", ["\N{CYRILLIC SMALL LETTER A}"], 1.0)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("nemo_ctc", "zipformer")])
def test_a_folder_without_its_description_is_answered_with_that(tmp_path, family):
    for file in (FOLDERS / family).iterdir():
        if file.name != "recognizer.json":
            shutil.copy(file, tmp_path)
    with pytest.raises(ModelLoadingError, match=r"no recognizer\.json, so .* family nemo_ctc.*docs/"):
        load_model(tmp_path, "nemo_ctc", open_session)


def test_models_say_which_languages_they_understand(tmp_path):
    for file in (FOLDERS / "zipformer_ctc").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "recognizer.json").write_text('{"family": "zipformer_ctc", "languages": "de, fr"}')
    reader = new_reader(load_model(tmp_path, "moonshine", open_session))
    assert reader.languages == ("de", "fr")
    assert reader.options("fr", [], 1.0).language == "fr"
    with pytest.raises(UnsupportedLanguageError):
        reader.options("en", [], 1.0)
    # It is not told which of the two it hears, and does not say it.
    audio = recordings("zipformer_ctc")[0]
    assert reader.read(audio, ReadOptions("fr")).language == ""


def test_sense_voice_is_told_the_language_or_finds_it_out():
    open_network = changing("model.onnx")
    reader = new_reader(load("sense_voice", open_network))
    assert reader.languages == (DETECT, "zh", "en", "yue", "ja", "ko")
    audio = recordings("sense_voice")[0]
    # The small network writes "en" where its input is English, and "zh" otherwise.
    assert reader.read(audio, ReadOptions("en")).language == "en"
    assert reader.read(audio, ReadOptions(DETECT)).language == "zh"
    told = [(feed["language"].tolist(), feed["text_norm"].tolist()) for feed in open_network.changed.fed]
    assert told == [([4], [14]), ([0], [14])]


def test_a_paraformer_without_times_has_none():
    open_network = changing(
        "model.onnx", outputs=open_session(FOLDERS / "paraformer/model.onnx").get_outputs()[:2]
    )
    reader = new_reader(load("paraformer", open_network))
    audio = recordings("paraformer")[0]
    untimed, timed = reader.read(audio, NOTHING), new_reader(load("paraformer")).read(audio, NOTHING)
    assert untimed.words == ()
    assert untimed.text == timed.text != ""
    assert untimed.confidence > 0


def test_a_text_below_the_least_confidence_is_none():
    audio = recordings("zipformer")[0]
    unsure = new_reader(load("zipformer"), least_confidence=0.999).read(audio, NOTHING)
    assert (unsure.text, unsure.confidence, unsure.words) == ("", 0.0, ())


def test_a_network_of_one_row_reads_one_stretch_at_a_time():
    session = open_session(FOLDERS / "nemo_ctc/model.onnx")
    fixed = session.get_inputs()
    fixed[0].shape[0] = 1

    class Shaped:
        name, type, shape = fixed[0].name, fixed[0].type, [1, *fixed[0].shape[1:]]

    open_network = changing("model.onnx", inputs=[Shaped, fixed[1]])
    assert new_reader(load("nemo_ctc", open_network), limits=MANY).run_limits.stretches == 1
    assert new_reader(load("nemo_ctc"), limits=MANY).run_limits.stretches == 8


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_that_is_stopped_gives_no_text(family):
    stop = Stop()
    stop.request()
    reader = new_reader(load(family))
    with pytest.raises(StoppedError):
        reader.read(recordings(family)[0], NOTHING, stop)


@pytest.mark.parametrize("role", ["decoder", "joiner"])
def test_the_decoding_of_a_transducer_is_stopped_at_its_next_step(role):
    stop, steps = Stop(), []

    def stopping(results):
        steps.append(role)
        stop.request()
        return results

    reader = new_reader(load("zipformer", changing(f"{role}.onnx", change=stopping)))
    audio = recordings("zipformer")[0]
    with pytest.raises(StoppedError):
        reader.read(audio, NOTHING, stop)
    assert len(steps) == 1
    assert reader.read(audio, NOTHING).text
