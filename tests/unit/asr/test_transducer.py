from dataclasses import replace

import numpy as np
import pytest
from asr_fakes import DURATIONS, FEATURES, VOCABULARY, RandomJoint, ScriptedJoint, same_state, same_tokens

from parley.asr.decoding.boosting import PhraseAutomaton, build
from parley.asr.decoding.greedy import Tokens, TransducerDecoder, TransducerState, tsallis_confidence
from parley.errors import InferenceError

BLANK = VOCABULARY
FIELDS = ("ids", "frames", "durations", "confidences")


KINDS = pytest.mark.parametrize("durations", [DURATIONS, ()], ids=["tdt", "rnnt"])


def decoder_of(network, max_symbols=10, durations=DURATIONS):
    return TransducerDecoder(network, blank=BLANK, durations=durations, max_symbols=max_symbols)


def one_by_one(network, encoded, length, durations, max_symbols=10):
    """Plain greedy decoding of one row: (token, frame, duration) triples."""
    hidden = np.zeros((network.layers, 1, network.width), np.float32)
    cell, target, at, symbols, found = hidden, BLANK, 0, 0, []
    while at < length:
        scores, next_hidden, next_cell = network.step(
            encoded[:, at][None], np.array([target], np.int32), hidden, cell
        )
        token = int(scores[0, : BLANK + 1].argmax())
        duration = durations[int(scores[0, BLANK + 1 :].argmax())] if durations else 0
        advance = duration
        if token != BLANK:
            found.append((token, at, duration))
            hidden, cell, target = next_hidden, next_cell, token
            symbols += 1
            if symbols >= max_symbols and duration == 0:
                advance = 1
        elif duration == 0:
            advance = 1
        if advance:
            symbols = 0
        at += advance
    return found


@pytest.fixture
def batch():
    rng = np.random.default_rng(1)
    lengths = np.array([40, 7, 0, 23, 1, 40], np.int64)
    return rng.standard_normal((6, FEATURES, 40)).astype(np.float32), lengths


@KINDS
def test_rows_in_lockstep_equal_rows_one_by_one(batch, durations):
    encoded, lengths = batch
    decoder = decoder_of(RandomJoint(0, durations), durations=durations)
    rows, _ = decoder.decode(encoded, lengths, decoder.initial_state(6))
    for row, values, length in zip(rows, encoded, lengths, strict=True):
        expected = one_by_one(RandomJoint(0, durations), values, length, durations)
        assert list(zip(*(getattr(row, name).tolist() for name in FIELDS[:3]), strict=True)) == expected
    assert set(np.concatenate([row.durations for row in rows]).tolist()) == set(durations or [0])


def test_the_network_runs_once_per_symbol_for_all_rows_not_done(batch):
    encoded, lengths = batch
    alone = []
    for row in range(6):
        network = RandomJoint()
        decoder = decoder_of(network)
        decoder.decode(encoded[row : row + 1], lengths[row : row + 1], decoder.initial_state(1))
        alone.append(len(network.rows_seen))
    network = RandomJoint()
    decoder = decoder_of(network)
    decoder.decode(encoded, lengths, decoder.initial_state(6))
    assert len(network.rows_seen) == max(alone)
    assert sum(network.rows_seen) == sum(alone)


@KINDS
@pytest.mark.parametrize("size", [1, 2, 3, 7, 13])
def test_pieces_equal_one_shot(batch, size, durations):
    encoded, _ = batch
    lengths = np.full(6, 40, np.int64)
    decoder = decoder_of(RandomJoint(0, durations), durations=durations)
    whole, whole_state = decoder.decode(encoded, lengths, decoder.initial_state(6))
    state = decoder.initial_state(6)
    found = [[] for _ in range(6)]
    for start in range(0, 40, size):
        piece = encoded[:, :, start : start + size]
        tokens, state = decoder.decode(piece, np.full(6, piece.shape[2], np.int64), state)
        for row, part in zip(found, tokens, strict=True):
            row.append(replace(part, frames=part.frames + start))
    for parts, expected in zip(found, whole, strict=True):
        joined = Tokens(*(np.concatenate([getattr(part, name) for part in parts]) for name in FIELDS))
        assert same_tokens(joined, expected)
    for name in ("targets", "hidden", "cell", "skip"):
        assert same_state(name, getattr(state, name), getattr(whole_state, name))


def test_the_padding_of_a_row_is_never_read(batch):
    encoded, lengths = batch
    decoder = decoder_of(RandomJoint())
    clean, _ = decoder.decode(encoded, lengths, decoder.initial_state(6))
    for row, length in enumerate(lengths):
        encoded[row, :, length:] = np.nan
    dirty, _ = decoder.decode(encoded, lengths, decoder.initial_state(6))
    assert [row.ids.tolist() for row in dirty] == [row.ids.tolist() for row in clean]


@KINDS
def test_the_rows_of_a_state_can_be_kept_apart(batch, durations):
    encoded, _ = batch
    first, second = encoded[:, :, :11], encoded[:, :, 11:30]
    decoder = decoder_of(RandomJoint(0, durations), durations=durations)
    _, state = decoder.decode(first, np.full(6, 11), decoder.initial_state(6))
    together, after = decoder.decode(second, np.full(6, 19), state)
    some = np.array([4, 1])
    names = ("targets", "hidden", "cell", "skip", "phrase")
    part = TransducerState(*(getattr(state, name)[some] for name in names))
    rows, part_after = decoder.decode(second[some], np.full(2, 19), part)
    assert [row.ids.tolist() for row in rows] == [together[row].ids.tolist() for row in some]
    for name in names:
        assert same_state(name, getattr(part_after, name), getattr(after, name)[some])


def decode_script(*script, frames, max_symbols=10):
    decoder = decoder_of(ScriptedJoint(*script), max_symbols)
    encoded = np.zeros((1, FEATURES, frames), np.float32)
    (tokens,), state = decoder.decode(encoded, np.array([frames]), decoder.initial_state(1))
    return tokens, state


def test_a_blank_of_no_duration_advances_by_one_frame_and_leaves_the_state():
    tokens, state = decode_script((BLANK, 0), (3, 1), frames=2)
    assert (tokens.ids.tolist(), tokens.frames.tolist()) == ([3], [1])
    assert state.hidden.item() == 1.0


def test_tokens_of_no_duration_share_a_frame_up_to_the_limit():
    tokens, _ = decode_script((1, 0), (2, 0), (3, 0), (4, 1), frames=2, max_symbols=3)
    assert tokens.ids.tolist() == [1, 2, 3, 4]
    assert tokens.frames.tolist() == [0, 0, 0, 1]


def test_a_duration_past_the_end_is_carried():
    tokens, state = decode_script((1, 4), frames=1)
    assert tokens.durations.tolist() == [4]
    assert state.skip.tolist() == [3]
    assert state.targets.tolist() == [1]


@KINDS
def test_boosted_phrases_win_over_other_tokens_row_by_row(batch, durations):
    encoded, lengths = batch
    decoder = decoder_of(RandomJoint(0, durations), durations=durations)
    plain, _ = decoder.decode(encoded, lengths, decoder.initial_state(6))
    nothing = PhraseAutomaton.nothing()
    some, often = build([[3, 7, 7]], 2.0), build([[5, 2]], 50.0)
    automata = [nothing, some, some, often, nothing, often]
    rows, state = decoder.decode(encoded, lengths, decoder.initial_state(6), automata)
    for row in range(6):
        alone, _ = decoder.decode(
            encoded[row : row + 1], lengths[row : row + 1], decoder.initial_state(1), [automata[row]]
        )
        assert rows[row].ids.tolist() == alone[0].ids.tolist()
    for row in (0, 4):
        assert rows[row].ids.tolist() == plain[row].ids.tolist()
    for row in (3, 5):
        ids = rows[row].ids.tolist()
        assert ids == ([5, 2] * len(ids))[: len(ids)]
        assert len(ids) > 5
    assert state.phrase.tolist()[:1] == [0]


@pytest.mark.parametrize("size", [1, 3, 13])
def test_a_phrase_may_go_on_in_the_next_piece(batch, size):
    encoded, _ = batch
    decoder = decoder_of(RandomJoint())
    automata = [build([[3, 7, 7], [7, 1], [5, 2, 9, 4]], 1.5)] * 6
    plain, _ = decoder.decode(encoded, np.full(6, 40), decoder.initial_state(6))
    whole, whole_state = decoder.decode(encoded, np.full(6, 40), decoder.initial_state(6), automata)
    state, found = decoder.initial_state(6), [[] for _ in range(6)]
    for start in range(0, 40, size):
        piece = encoded[:, :, start : start + size]
        tokens, state = decoder.decode(piece, np.full(6, piece.shape[2]), state, automata)
        for row, part in zip(found, tokens, strict=True):
            row.extend(part.ids.tolist())
    assert found == [row.ids.tolist() for row in whole]
    assert found != [row.ids.tolist() for row in plain]
    assert np.array_equal(state.phrase, whole_state.phrase)


def test_scores_that_are_not_finite_are_an_error():
    class Broken(ScriptedJoint):
        def step(self, frames, targets, hidden, cell):
            scores, hidden, cell = super().step(frames, targets, hidden, cell)
            return scores * np.nan, hidden, cell

    decoder = decoder_of(Broken((1, 1)))
    with pytest.raises(InferenceError, match="not finite"):
        decoder.decode(np.zeros((1, FEATURES, 2), np.float32), np.array([2]), decoder.initial_state(1))


@pytest.mark.parametrize(("network", "decoder"), [((), DURATIONS), (DURATIONS, ())])
def test_a_network_of_the_other_kind_is_an_error(batch, network, decoder):
    decoder = decoder_of(RandomJoint(0, network), durations=decoder)
    with pytest.raises(InferenceError, match="classes"):
        decoder.decode(*batch, decoder.initial_state(6))


def test_an_rnnt_is_asked_about_several_frames_at_once_and_says_the_same(batch):
    class Quiet(RandomJoint):
        def step(self, *args):
            scores, hidden, cell = super().step(*args)
            scores[:, BLANK] += 5.0
            return scores, hidden, cell

    encoded, _ = batch
    for seed in range(5):
        ahead, one_by_one = Quiet(seed, ()), Quiet(seed, ())
        decoder = decoder_of(ahead, durations=())
        (tokens,), state = decoder.decode(encoded[:1], np.array([40]), decoder.initial_state(1))
        decoder = decoder_of(one_by_one, durations=())
        after, found = decoder.initial_state(1), []
        for frame in range(40):
            (part,), after = decoder.decode(encoded[:1, :, frame : frame + 1], np.array([1]), after)
            found += [(token, frame) for token in part.ids.tolist()]
        assert found == list(zip(tokens.ids.tolist(), tokens.frames.tolist(), strict=True))
        assert same_state("hidden", state.hidden, after.hidden)
        assert len(tokens.ids) > 0
        assert len(ahead.rows_seen) <= len(tokens.ids) + 40 / 8
        assert len(one_by_one.rows_seen) >= 40


def test_an_rnnt_leaves_a_frame_after_a_blank_or_the_limit(batch):
    class Talker(RandomJoint):
        def step(self, *args):
            scores, hidden, cell = super().step(*args)
            scores[:, BLANK] -= 1000.0
            return scores, hidden, cell

    encoded, lengths = batch
    decoder = decoder_of(Talker(0, ()), max_symbols=3, durations=())
    rows, _ = decoder.decode(encoded, lengths, decoder.initial_state(6))
    for row, length in zip(rows, lengths, strict=True):
        assert row.frames.tolist() == [frame for frame in range(length) for _ in range(3)]


def test_confidence_is_zero_for_a_uniform_and_one_for_a_sure_distribution():
    sure = np.zeros((1, 129), np.float32)
    sure[0, 7] = 200.0
    assert tsallis_confidence(np.full((1, 129), 5.0, np.float32)).tolist() == [0.0]
    assert tsallis_confidence(sure).tolist() == [1.0]


def test_confidence_is_the_published_formula():
    logits = np.random.default_rng(0).standard_normal((4, 129)).astype(np.float32) * 6
    alpha, count = 0.33, 129
    for row, found in zip(logits, tsallis_confidence(logits), strict=True):
        p = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
        entropy = (1 - (p**alpha).sum()) / (alpha - 1)
        greatest = (1 - count ** (1 - alpha)) / (alpha - 1)
        expected = (np.exp(-entropy) - np.exp(-greatest)) / (1 - np.exp(-greatest))
        assert found == pytest.approx(expected, abs=1e-6)


def test_real_recordings_decode_alike_alone_in_a_batch_and_in_pieces(export, models, spoken):
    from parley.asr.features import LogMel, normalize
    from parley.asr.parakeet.networks import OnnxJoint
    from parley.runtime.onnx import open_session

    mel = LogMel(export.config)
    features = [normalize(mel.offline(clip.audio.astype(np.float32) / 32768)) for clip in spoken[:8]]
    lengths = np.array([item.shape[1] for item in features], np.int64)
    padded = np.zeros((8, mel.bands, lengths.max()), np.float32)
    for row, item in enumerate(features):
        padded[row, :, : item.shape[1]] = item
    encoded, encoded_lengths = models.encode(padded, lengths)
    together = [decoded.tokens for decoded in models.decode(encoded, encoded_lengths)]
    decoder = TransducerDecoder.of(export, OnnxJoint(open_session(export.decoder)))
    for row, item in enumerate(features):
        alone, length = models.encode(item[None], lengths[row : row + 1])
        count = int(length[0])
        assert count == encoded_lengths[row]
        assert np.abs(alone[0, :, :count] - encoded[row, :, :count]).max() < 1e-4
        (expected,) = [decoded.tokens for decoded in models.decode(alone, length)]
        assert together[row].ids.tolist() == expected.ids.tolist()
        assert together[row].frames.tolist() == expected.frames.tolist()
        assert np.abs(together[row].confidences - expected.confidences).max(initial=0) < 1e-3
        state, ids = decoder.initial_state(1), []
        for start in range(0, count, 2):
            piece = alone[:, :, start : min(start + 2, count)]
            (part,), state = decoder.decode(piece, np.array([piece.shape[2]]), state)
            ids += part.ids.tolist()
        assert ids == expected.ids.tolist()
