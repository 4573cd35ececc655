"""Times of the words of attention decoders, by their cross-attention."""

from __future__ import annotations

import numpy as np
import pytest
from attention_fakes import MS, NOTHING, ScriptedNetwork, new_reader
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.asr.decoding.alignment import Timing, first_frames
from parley.asr.reader import Stretch
from parley.asr.readers import load_reader
from parley.asr.readers.attention import DecoderStep, Vocabulary
from parley.asr.readers.moonshine import FILES
from parley.errors import ModelLoadingError
from parley.runtime.onnx import Stop

FRAME = 10 * MS
TIMING = Timing(FRAME, MS, start_late=0, end_late=0)
LATE = Timing(FRAME, MS, start_late=2, end_late=1)
PIECES = (b"<unk>", b"<s>", b"</s>", "▁new".encode(), "▁yo".encode(), b"rk", b".", "▁".encode(), b"..")
NEW, YO, RK, STOP, SPACE, STOPS = range(3, 9)


def weights(*begins, frames=100, heads=2):
    """Attention of tokens that look at what is from their beginning to that of the next."""
    made = np.full((len(begins), heads, frames), 0.01, np.float32)
    for token, (begin, end) in enumerate(zip(begins, [*begins[1:], frames], strict=True)):
        made[token, :, begin:end] = 1.0
    return made


def loud(*spans, frames=100):
    """Audio with speech in spans of frames."""
    audio = np.full(frames * FRAME, 1e-4, np.float32)
    for begin, end in spans:
        audio[begin * FRAME : end * FRAME] = 0.5
    return audio


def times(ids, attention, audio, timing=TIMING):
    words = timing.words([PIECES[token] for token in ids], [-0.1] * len(ids), attention, audio)
    return [(word.text, word.start_ms, word.end_ms) for word in words]


# --- alignment ----------------------------------------------------------------------------


def test_tokens_begin_where_their_weights_do():
    assert first_frames(weights(0, 10, 11, 60)[:, 0]).tolist() == [0, 10, 11, 60]


def test_more_tokens_than_frames_share_frames():
    assert first_frames(np.ones((5, 2), np.float32)).tolist() == [0, 0, 0, 1, 1]


@given(st.integers(1, 12), st.integers(1, 60), st.integers(0, 1_000))
@settings(deadline=None)
def test_alignment_has_the_most_weight_of_all(tokens, frames, seed):
    given_weights = np.random.default_rng(seed).random((tokens, max(frames, tokens))).astype(np.float32)
    begins = first_frames(given_weights)
    assert begins[0] == 0
    assert (np.diff(begins) > 0).all()
    assert begins[-1] < given_weights.shape[1]
    # By the recursion itself, cell by cell.
    best = {(0, 0): float(given_weights[0, 0])}
    for at in range(1, given_weights.shape[1]):
        for token in range(tokens):
            before = [best[key] for key in ((token, at - 1), (token - 1, at - 1)) if key in best]
            if before:
                best[token, at] = max(before) + float(given_weights[token, at])
    ends = [*begins[1:], given_weights.shape[1]]
    own = sum(
        given_weights[n, b:e].sum(dtype=float) for n, (b, e) in enumerate(zip(begins, ends, strict=True))
    )
    assert own == pytest.approx(best[tokens - 1, given_weights.shape[1] - 1])


# --- words --------------------------------------------------------------------------------


def test_words_of_several_tokens_end_before_their_punctuation():
    audio = loud((0, 100))
    ids, attention = [NEW, YO, RK, STOP], weights(0, 20, 30, 50, 70)
    assert times(ids, attention, audio) == [("new", 0, 200), ("york.", 200, 500)]
    assert times(ids, attention, audio, LATE) == [("new", 20, 210), ("york.", 220, 510)]


def test_last_word_ends_where_the_end_of_the_text_is_looked_for():
    assert times([NEW], weights(0, 40), loud((0, 100))) == [("new", 0, 400)]
    assert times([NEW], weights(0), loud((0, 100))) == [("new", 0, 1_000)], "the text did not end"


def test_words_begin_behind_the_silence_before_them():
    audio = loud((15, 30), (60, 80))
    assert times([NEW, YO], weights(0, 30, 80), audio) == [("new", 150, 300), ("yo", 600, 800)]


def test_word_at_the_end_of_the_audio_is_within_it():
    assert times([NEW, YO], weights(0, 99), loud((0, 100)), LATE) == [("new", 20, 1_000), ("yo", 990, 1_000)]


def test_space_of_its_own_begins_the_next_word():
    assert times([NEW, SPACE, RK], weights(0, 20, 30, 50), loud((0, 100))) == [
        ("new", 0, 200),
        ("rk", 200, 500),
    ]


def test_text_without_tokens_has_no_words():
    assert times([], weights(0), loud((0, 100))) == []


# --- reading ------------------------------------------------------------------------------


class LookingNetwork(ScriptedNetwork):
    """Looks where the test says."""

    def __init__(self, attention, *script, **more):
        super().__init__(*script, **more)
        self.attention = attention

    def step(self, encoded, tokens, past):
        step = super().step(encoded, tokens, past)
        row = min(len(past) if past else 0, len(self.attention) - 1)
        return DecoderStep(step.logits, step.past, self.attention[row])


def reader(attention, *script, timing=TIMING):
    network = LookingNetwork(attention, *script, tokens=len(PIECES))
    return new_reader(network, vocabulary=Vocabulary(PIECES, frozenset(range(3))), timing=timing)


def read(made, frames=100, start_ms=0):
    (text,) = made.read_together(
        [Stretch(np.full(frames * FRAME, 9_000, np.int16), NOTHING, start_ms)], Stop()
    )
    return text.text, [(word.text, word.start_ms, word.end_ms) for word in text.words], text.words


def test_words_have_times_of_the_stream_and_confidences():
    text, spans, words = read(reader(weights(0, 20, 30, 70), NEW, {YO: 4.0, RK: 3.0}, RK), start_ms=5_000)
    assert (text, spans) == ("new york", [("new", 5_000, 5_200), ("york", 5_200, 5_700)])
    assert words[0].confidence > 0.99 > words[1].confidence > 0.5


def test_words_are_those_of_the_text_with_one_full_stop():
    text, spans, _ = read(reader(weights(0, 20, 70), NEW, STOPS))
    assert (text, spans) == ("new.", [("new.", 0, 200)])


def test_model_without_timing_has_no_words():
    assert read(reader(weights(0, 20), NEW, timing=None))[1] == []


def test_text_that_is_read_again_has_times_of_its_own_audio():
    # The first text has no end, and the second is read with 50 ms before it.
    class Looping(LookingNetwork):
        def encode(self, audio, stop):
            self.again = len(audio) > 100 * FRAME
            self.script = (NEW, RK) if self.again else (NEW,) * 200
            return super().encode(audio, stop)

    network = Looping(weights(0, 25, 65, frames=105), tokens=len(PIECES))
    made = new_reader(network, vocabulary=Vocabulary(PIECES, frozenset(range(3))), timing=TIMING)
    _, spans, _ = read(made)
    assert spans == [("newrk", 0, 600)]


# --- files --------------------------------------------------------------------------------


def test_decoder_of_another_form_is_refused(tmp_path):
    for name in FILES.values():
        (tmp_path / name).write_bytes(b"")
    (tmp_path / FILES["tokenizer"]).write_bytes(b"".join(bytes([len(piece)]) + piece for piece in PIECES))
    with pytest.raises(ModelLoadingError, match="format of ONNX Runtime"):
        load_reader(tmp_path, "moonshine", lambda path, part=b"": None)
