"""From audio to text: files, networks, decoding, and where long speech is cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from attention_fakes import (
    MS,
    NOTHING,
    LengthNetwork,
    ScriptedNetwork,
    new_reader,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.asr.decoding.boosting import build, compile_phrases
from parley.asr.reader import NO_TEXT, RecognizedText, combine_confidences, combine_texts
from parley.asr.readers import load_reader
from parley.asr.readers.attention import Vocabulary, decode, repeated
from parley.asr.readers.moonshine import (
    END,
    FILES,
    RULES,
    SHORTEST,
    START,
    MoonshineNetwork,
    read_vocabulary,
)
from parley.asr.utterances.utterance import Window, pieces, quietest
from parley.errors import InferenceError, ModelLoadingError
from parley.runtime.onnx import Stop, StoppedError

TOKENIZER = FILES["tokenizer"]
SECOND = np.zeros(16_000, np.float32)


# --- the vocabulary -----------------------------------------------------------------------


def tokenizer(*pieces):
    return b"".join(
        bytes([len(piece)]) + piece
        if len(piece) < 128
        else bytes([len(piece) % 128 + 128, len(piece) // 128]) + piece
        for piece in pieces
    )


def test_pieces_are_read_by_their_lengths(tmp_path):
    pieces = (b"<unk>", b"<s>", b"</s>", b"", "▁a".encode(), b"x" * 127, b"y" * 128, b"z" * 300)
    (tmp_path / TOKENIZER).write_bytes(tokenizer(*pieces))
    assert read_vocabulary(tmp_path / TOKENIZER).pieces == pieces


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (tokenizer(b"<unk>", b"<s>", b"</s>", b"ab")[:-1], "ends within token 3"),
        (tokenizer(b"<unk>", b"<s>", b"</s>") + b"\x81", "ends within token 3"),
        (tokenizer(b"<unk>"), "no text"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, content, problem):
    if content is not None:
        (tmp_path / TOKENIZER).write_bytes(content)
    with pytest.raises(ModelLoadingError, match=problem):
        read_vocabulary(tmp_path / TOKENIZER)


def test_a_text_has_single_spaces_and_whole_characters_only():
    vocabulary = Vocabulary(
        (b"<unk>", b"<s>", b"</s>", "▁It".encode(), b"'s", "▁".encode(), b"\xc3", b"\xa9"),
        frozenset(range(3)),
    )
    assert vocabulary.text([START, 3, 4, 5, 5, 6, 7, END]) == "It's \N{LATIN SMALL LETTER E WITH ACUTE}"
    assert vocabulary.text([3, 6]) == "It"
    assert vocabulary.spelled == ("", "", "", "▁It", "'s", "▁", "", "")


# --- the networks -------------------------------------------------------------------------


class Tensor:
    def __init__(self, name, shape):
        self.name, self.shape = name, shape


class Session:
    """Answers runs with what the test says, and remembers what it was given."""

    def __init__(self, inputs, outputs, answers):
        self._inputs, self._outputs = inputs, outputs
        self.answers, self.fed = list(answers), []

    def get_inputs(self):
        return self._inputs

    def get_outputs(self):
        return self._outputs

    def run(self, names, feed, _options=None):
        self.fed.append(feed)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


STATES = [Tensor("last_hidden_state", ["B", "T", "D"])]
OWN, AUDIO = "0.decoder.key", "0.encoder.key"


def decoder(*answers, tokens=5, past=(OWN, AUDIO), present=(OWN, AUDIO)):
    return Session(
        [
            Tensor("input_ids", ["B", "N"]),
            *(Tensor(f"past_key_values.{name}", ["B", 8, "P", 36]) for name in past),
        ],
        [
            Tensor("logits", ["B", "N", tokens]),
            *(Tensor(f"present.{name}", ["B", 8, "P", 36]) for name in present),
        ],
        answers,
    )


def keys(length, value):
    return np.full((1, 8, length, 36), value, np.float32)


def test_later_steps_keep_what_the_first_one_made_of_the_audio():
    scores = np.arange(5, dtype=np.float32)[None, None]
    session = decoder(
        [scores, keys(1, 1), keys(9, 2)],
        [scores + 1, keys(2, 3), keys(0, 0)],
        [scores, keys(3, 4), keys(0, 0)],
    )
    states = np.ones((1, 7, 4), np.float32)
    encoder = Session([], STATES, [[states]])
    network = MoonshineNetwork(encoder, session, tokens=5)
    encoded = network.encode(SECOND, Stop())
    assert encoder.fed[0]["input_values"].shape == encoder.fed[0]["attention_mask"].shape == (1, 16_000)
    first, past, _ = network.step(encoded, [1], None)
    second, past, _ = network.step(encoded, [4], past)
    network.step(encoded, [3], past)
    assert first.tolist() == [[0, 1, 2, 3, 4]]
    assert second.tolist() == [[1, 2, 3, 4, 5]]
    assert [bool(feed["use_cache_branch"][0]) for feed in session.fed] == [False, True, True]
    assert [feed["input_ids"].tolist() for feed in session.fed] == [[[1]], [[4]], [[3]]]
    assert all(feed["encoder_attention_mask"].shape == (1, 16_000) for feed in session.fed)
    own, audio = (f"past_key_values.{name}" for name in (OWN, AUDIO))
    assert [feed[own].shape for feed in session.fed] == [(0, 8, 1, 36), (1, 8, 1, 36), (1, 8, 2, 36)]
    assert all(np.array_equal(feed[audio], keys(9, 2)) for feed in session.fed[1:])


@pytest.mark.parametrize("answer", [RuntimeError("out of memory"), [np.full((1, 2, 3), np.nan, np.float32)]])
def test_failed_encoder_is_reported(answer):
    network = MoonshineNetwork(Session([], STATES, [answer]), decoder(), tokens=5)
    with pytest.raises(InferenceError):
        network.encode(SECOND, Stop())


def test_failed_decoder_is_reported():
    network = MoonshineNetwork(
        Session([], STATES, [[np.ones((1, 2, 3), np.float32)]]), decoder(RuntimeError("no")), tokens=5
    )
    with pytest.raises(InferenceError, match="no"):
        network.step(network.encode(SECOND, Stop()), [1], None)


@pytest.mark.parametrize("parts", [{"tokens": 6}, {"past": ()}, {"present": (OWN,)}])
def test_networks_that_do_not_go_together_are_refused(parts):
    with pytest.raises(ModelLoadingError):
        MoonshineNetwork(Session([], STATES, []), decoder(**parts), tokens=5)


def test_files_of_the_folder_are_loaded(tmp_path):
    (tmp_path / TOKENIZER).write_bytes(tokenizer(b"<unk>", b"<s>", b"</s>", "▁Hi".encode(), b"."))
    scores = [np.eye(5, dtype=np.float32)[None, None, at] * 20 for at in (3, 4, END)]
    (tmp_path / "recognizer.json").write_text('{"family": "moonshine", "decoder": "decoder.onnx"}')
    sessions = {
        FILES["encoder"]: Session([], STATES, [[np.ones((1, 2, 3), np.float32)]]),
        "decoder.onnx": decoder(*([score, keys(1, 0), keys(1, 0)] for score in scores)),
    }
    for name in sessions:
        (tmp_path / name).touch()
    reader = load_reader(tmp_path, "moonshine", lambda path, part=b"": sessions[path.name])
    assert reader.read(np.ones(16_000, np.int16), NOTHING).text == "Hi."


# --- decoding -----------------------------------------------------------------------------


def read(network, audio, boosting=NOTHING.boosting, stop=None):
    stop = stop or Stop()
    encoded, limit = network.encode(audio, stop), RULES.limit(len(audio))
    return decode(network, encoded, [START], RULES, boosting, limit=limit, stop=stop)


def test_a_text_ends_with_its_end():
    network = ScriptedNetwork(5, 6, 7)
    tokens = read(network, SECOND)
    assert tokens.ids == [5, 6, 7]
    assert network.fed == [START, 5, 6, 7]
    sure = np.exp(9.0) / (np.exp(9.0) + 39)
    assert tokens.confidence == pytest.approx(sure, abs=1e-6)


def test_length_of_a_text_is_bounded_by_the_audio():
    endless = ScriptedNetwork(*(3 + number % 37 for number in range(1_000)))
    assert len(read(endless, SECOND).ids) == RULES.limit(16_000) == 12
    assert RULES.limit(1_600) == 4


@pytest.mark.parametrize(
    ("ids", "again"),
    [
        ([], 0),
        ([4, 4, 4, 4], 0),
        ([4] * 8, 7),
        ([9] + [4] * 8, 7),
        ([4, 5] * 4, 0),
        ([4, 5] * 5, 8),
        ([4, 5] * 5 + [4], 9),
        ([4, 5] * 20, 38),
        ([4, 5, 6] * 2, 0),
        ([1, 4, 5, 6] + [7, 8, 9] * 3, 6),
        ([4, 5, 6] * 3 + [7], 0),
        (list(range(16)) * 3, 32),
        (list(range(17)) * 3, 0),
    ],
)
def test_repeated_suffix_is_found(ids, again):
    assert repeated(ids) == again


@pytest.mark.parametrize("phrase", [[7] * 12, [7, 8] * 6, [7, 8, 9] * 4, list(range(7, 20)) * 3])
def test_decode_with_a_repeated_phrase_before_other_words_keeps_all(phrase):
    said = [5, *phrase, 6]
    tokens = read(ScriptedNetwork(*said), np.zeros(16_000 * 9, np.float32))
    assert (tokens.ids, tokens.ended) == (said, True)


def test_decode_with_a_loop_up_to_the_limit_keeps_its_first_phrase():
    network = ScriptedNetwork(5, {7: 9.0, 6: 8.0}, 8, 9, *[7, 8, 9] * 200)
    tokens = read(network, np.zeros(16_000 * 9, np.float32))
    assert (tokens.ids, tokens.ended) == ([5, 7, 8, 9], False)
    assert len(network.fed) == RULES.limit(16_000 * 9)
    short = read(ScriptedNetwork(5, {7: 9.0, 6: 8.0}, 8, 9), SECOND)
    assert short.ended
    assert tokens.confidence < short.confidence, "of the four tokens that are left, without the end"


def test_decode_with_a_loop_keeps_the_repeats_before_its_likeliest_end():
    once = {7: 9.0, END: 2.0}
    network = ScriptedNetwork(5, once, once, once, {7: 9.0, END: 8.0}, *[{7: 9.0, END: 7.0}] * 200)
    tokens = read(network, np.zeros(16_000 * 9, np.float32))
    assert (tokens.ids, tokens.ended) == ([5, 7, 7, 7], False)


def test_a_text_that_is_not_wanted_is_not_read_on():
    stop = Stop()

    class Stopping(ScriptedNetwork):
        def step(self, encoded, tokens, past):
            if past:
                stop.request()
            return super().step(encoded, tokens, past)

    network = Stopping(5, 6, 7, 8)
    with pytest.raises(StoppedError):
        read(network, SECOND, stop=stop)
    assert len(network.fed) == 2


def test_a_phrase_that_is_expected_wins_a_close_race():
    close = ({5: 4.0, 6: 4.5}, {7: 4.0, 8: 4.5})
    assert read(ScriptedNetwork(*close), SECOND).ids == [6, 8]
    assert read(ScriptedNetwork(*close), SECOND, build([[5, 7]], 1.0)).ids == [5, 7]
    assert read(ScriptedNetwork(*close), SECOND, build([[5, 7]], 0.1)).ids == [6, 8]


def test_a_phrase_does_not_win_against_what_is_clearly_said():
    clear = ScriptedNetwork({5: 2.0, 6: 12.0}, {7: 2.0, 8: 12.0})
    assert read(clear, SECOND, build([[5, 7]], 3.0)).ids == [6, 8]


def test_a_phrase_does_not_keep_a_text_from_ending():
    ending = ScriptedNetwork(6, {END: 6.0, 5: 4.0})
    assert read(ending, SECOND, build([[5, 7]], 5.0)).ids == [6]


def test_the_confidence_is_the_networks_own():
    close = ({5: 4.0, 6: 4.5},)
    boosted = read(ScriptedNetwork(*close), SECOND, build([[5]], 2.0))
    assert boosted.ids == [5]
    own = np.exp(4.0) / (np.exp(4.0) + np.exp(4.5) + 38)
    sure = np.exp(9.0) / (np.exp(9.0) + 39)
    assert boosted.confidence == pytest.approx((own + sure) / 2, abs=1e-6)


def test_phrases_have_the_cases_that_the_model_writes():
    vocabulary = ("<unk>", "<s>", "</s>", "▁new", "▁New", "▁york", "▁York")
    plain = compile_phrases(["new york"], 1.0, vocabulary)
    cased = compile_phrases(["new york"], 1.0, vocabulary, cased=True)
    # States beside the one outside: 3-5; 4-5 and 4-6 as well.
    assert len(plain.fallback) == 3
    assert len(cased.fallback) == 6


# --- what is speech -----------------------------------------------------------------------


@pytest.mark.parametrize(("written", "read"), [("H..", "H."), ("so..", "so."), ("well...", "well...")])
def test_read_of_two_full_stops_keeps_one(written, read):
    vocabulary = Vocabulary((b"<unk>", b"<s>", b"</s>", written.encode()), frozenset(range(3)))
    reader = new_reader(ScriptedNetwork(3, tokens=4), vocabulary=vocabulary)
    assert reader.read(np.full(16_000, 9_000, np.int16), NOTHING).text == read


def test_uncertain_text_is_dropped():
    reader = new_reader()
    loud = np.full(16_000, 9_000, np.int16)
    assert reader.read(loud, NOTHING).text == "t100"
    quiet = reader.read(np.zeros(16_000, np.int16), NOTHING)
    assert (quiet.text, quiet.confidence) == ("", 0.0)


class UnsteadyNetwork(ScriptedNetwork):
    """Loops in the first audio, unsure of it; of later audio it has another script."""

    def __init__(self, *later, first=({7: 2.0},) * 500):
        super().__init__(*first)
        self._later = later
        self.read = []

    def encode(self, audio, stop):
        if self.read:
            self.script = self._later
        self.read.append(len(audio))
        return super().encode(audio, stop)


def test_read_of_a_loop_that_is_no_text_reads_once_more():
    network = UnsteadyNetwork(5, 6)
    text = new_reader(network).read(np.full(16_000, 9_000, np.int16), NOTHING)
    assert text.text == "t2 t3"
    assert text.confidence > 0.9
    assert network.read == [16_000, 16_800]


@pytest.mark.parametrize(("later", "text"), [((5, 7, 7, 7), "t2 t4 t4 t4"), ([5, *[7] * 500], "t2 t4")])
def test_read_of_a_loop_takes_the_second_text_where_that_ends_by_itself(later, text):
    network = UnsteadyNetwork(*later, first=[5, *[7] * 500])
    assert new_reader(network).read(np.full(16_000, 9_000, np.int16), NOTHING).text == text
    assert network.read == [16_000, 16_800]


@pytest.mark.parametrize("later", [({5: 3.0},), [{7: 2.0}] * 500, [{5: np.nan}]])
def test_read_of_a_loop_that_stays_unsure_has_no_text(later):
    network = UnsteadyNetwork(*later)
    assert new_reader(network).read(np.full(16_000, 9_000, np.int16), NOTHING).text == ""
    assert len(network.read) == 2


def test_read_of_a_loop_as_long_as_the_encoder_takes_is_not_repeated():
    network = UnsteadyNetwork(5, 6)
    assert new_reader(network, longest=16_000).read(np.full(16_000, 9_000, np.int16), NOTHING).text == ""
    assert network.read == [16_000]


def test_audio_that_is_too_short_for_the_network_is_made_longer():
    network = LengthNetwork()
    new_reader(network).read(np.zeros(3, np.int16), NOTHING)
    assert network.read == [SHORTEST]


def test_scores_that_are_no_numbers_are_a_failure():
    reader = new_reader(ScriptedNetwork({5: np.nan}))
    with pytest.raises(InferenceError, match="not finite"):
        reader.read(np.ones(16_000, np.int16), NOTHING)


def test_pieces_count_by_their_words():
    texts = [RecognizedText("one two three", 0.9), NO_TEXT, RecognizedText("four", 0.5)]
    assert combine_texts(texts) == "one two three four"
    assert combine_confidences(texts) == pytest.approx(0.8)
    assert combine_confidences([NO_TEXT]) == 0.0


# --- cutting ------------------------------------------------------------------------------


def test_speech_is_cut_where_it_is_quietest():
    audio = np.full(10_000 * MS, 5_000, np.int16)
    audio[6_000 * MS : 6_400 * MS] = 10
    at = quietest(audio, 4_000 * MS, 9_000 * MS)
    assert 6_000 * MS <= at <= 6_400 * MS


def test_cut_is_at_the_last_of_equally_quiet_places():
    audio = np.full(10_000 * MS, 5_000, np.int16)
    assert quietest(audio, 4_000 * MS, 9_000 * MS) >= 8_900 * MS
    assert quietest(audio, 4_000 * MS, 4_000 * MS) == 4_000 * MS


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 60_000), st.integers(0, 5))
def test_pieces_are_all_of_the_speech_and_none_is_too_long(length_ms, seed):
    rng = np.random.default_rng(seed)
    loudness = np.repeat(rng.uniform(1, 9_000, length_ms // 100 + 1), 100 * MS)[: length_ms * MS]
    audio = (loudness * rng.standard_normal(length_ms * MS)).clip(-32_768, 32_767).astype(np.int16)
    window = Window(9_000, 4_000)
    found = list(pieces(audio, window))
    assert found[0][0] == 0
    assert found[-1][1] == len(audio)
    assert all(end == start for (_, end), (start, _) in pairwise(found))
    assert all(end - start <= 9_000 * MS for start, end in found)
    assert all(end - start >= 4_000 * MS for start, end in found[:-1])
