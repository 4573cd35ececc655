"""Beam search against greedy decoding, a plain beam search, and the sum over all alignments."""

import itertools
import math

import numpy as np
import pytest
from asr_fakes import (
    DURATIONS,
    FEATURES,
    ROUNDED,
    SUM_ERROR,
    VOCABULARY,
    RandomJoint,
    same_state,
    same_tokens,
)

from parley.asr.decoding.batch import DecoderRows
from parley.asr.decoding.beam import BeamDecoder
from parley.asr.decoding.boosting import PhraseAutomaton, PhraseForest, build, share
from parley.asr.decoding.greedy import TransducerDecoder
from parley.errors import InferenceError

BLANK = VOCABULARY
FIELDS = ("ids", "frames", "durations", "confidences")
KINDS = pytest.mark.parametrize("durations", [DURATIONS, ()], ids=["tdt", "rnnt"])
PHRASES = [[3, 7, 7], [7, 1], [5, 2, 9, 4], [2]]


def beam_of(network, size, durations=DURATIONS, **options):
    settings = {"blank": BLANK, "durations": durations, "max_symbols": 4, "max_tail": 150} | options
    return BeamDecoder(network, beam_size=size, **settings)


@pytest.fixture
def batch():
    rng = np.random.default_rng(2)
    lengths = np.array([30, 7, 0, 23, 1, 30], np.int64)
    return rng.standard_normal((6, FEATURES, 30)).astype(np.float32), lengths


def fields(tokens):
    return [getattr(tokens, name).tolist() for name in FIELDS]


def log_softmax(scores):
    scores = scores.astype(np.float64)
    return scores - np.logaddexp.reduce(scores)


class PlainBeam:
    """The same search for one row, with lists and dictionaries."""

    def __init__(self, network, size, durations, *, automaton=None, synchronous=True, max_symbols=4):
        self.network, self.size, self.durations = network, size, durations
        self.forest = PhraseForest([automaton], BLANK) if automaton else None
        self.synchronous, self.max_symbols = synchronous, max_symbols
        empty = np.zeros((network.layers, 1, network.width), np.float32)
        self.beam = [
            {"score": 0.0, "text": (), "at": 0, "symbols": 0, "phrase": 0, "hidden": empty, "cell": empty}
        ]

    def ways(self, one, frame):
        target = one["text"][-1][0] if one["text"] else BLANK
        scores, hidden, cell = self.network.step(
            frame[None], np.array([target], np.int32), one["hidden"], one["cell"]
        )
        token_scores = log_softmax(scores[0, : BLANK + 1])
        if self.forest:
            row, phrase = np.zeros(1, np.int64), np.array([one["phrase"]], np.int32)
            token_scores[:BLANK] += share(scores[:, :BLANK], self.forest.scores(row, phrase))[0]
        steps = list(zip(self.durations, log_softmax(scores[0, BLANK + 1 :]), strict=True)) or [(0, 0.0)]
        ways = []
        for token, (duration, score) in itertools.product(range(BLANK + 1), steps):
            new = one | {"score": one["score"] + token_scores[token] + score}
            step = duration
            if token == BLANK:
                step = max(duration, 1)
            else:
                new["text"] = (*one["text"], (token, one["at"], duration))
                new["symbols"] += 1
                new |= {"hidden": hidden, "cell": cell}
                if self.forest:
                    new["phrase"] = int(self.forest.advance(row, phrase, np.array([token]))[0])
                if step == 0 and new["symbols"] >= self.max_symbols:
                    step = 1
            new["at"] += step
            if step:
                new["symbols"] = 0
            ways.append(new)
        return sorted(ways, key=lambda way: -way["score"])[: self.size]

    def run(self, encoded, length):
        while running := [one for one in self.beam if one["at"] < length]:
            if self.synchronous:
                earliest = min(one["at"] for one in running)
                running = [one for one in running if one["at"] == earliest]
            waiting = [one for one in self.beam if not any(one is other for other in running)]
            grown = waiting + [way for one in running for way in self.ways(one, encoded[:, one["at"]])]
            merged = {}
            for one in sorted(grown, key=lambda way: -way["score"])[: self.size]:
                key = tuple(token for token, *_ in one["text"]), one["at"]
                if key in merged:
                    merged[key]["score"] = np.logaddexp(merged[key]["score"], one["score"])
                else:
                    merged[key] = one
            self.beam = list(merged.values())
        return self.ranked()

    def ranked(self):
        row = np.zeros(1, np.int64)
        found = {}
        for one in self.beam:
            credit = self.forest.credit(row, np.array([one["phrase"]], np.int32))[0] if self.forest else 0.0
            one["rank"] = (one["score"] - credit) / (len(one["text"]) + 1)
        for one in sorted(self.beam, key=lambda one: -one["rank"]):
            found.setdefault(tuple(token for token, *_ in one["text"]), one)
        return list(found.values())


def whole(reading, hypothesis):
    """All tokens of a hypothesis as (token, frame, duration)."""
    return [
        item for part in (reading.settled, hypothesis.tokens) for item in zip(*fields(part)[:3], strict=True)
    ]


@KINDS
def test_a_beam_of_one_is_greedy_decoding(batch, durations):
    encoded, lengths = batch
    for seed in range(5):
        network = RandomJoint(seed, durations)
        greedy = TransducerDecoder(network, blank=BLANK, durations=durations, max_symbols=4)
        expected, expected_state = greedy.decode(encoded, lengths, greedy.initial_state(6))
        beam = beam_of(network, 1, durations)
        readings, state = beam.decode(encoded, lengths, beam.initial_state(6))
        for reading, tokens in zip(readings, expected, strict=True):
            assert same_tokens(reading.best, tokens)
        for name in ("targets", "hidden", "cell", "skip"):
            assert same_state(name, getattr(state, name)[:, 0], getattr(expected_state, name))


@KINDS
@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("phrases", [[], PHRASES])
def test_a_beam_is_the_plain_search(batch, durations, synchronous, size, phrases):
    encoded, lengths = batch
    automaton = build(phrases, 1.5)
    for seed in range(2):
        network = RandomJoint(seed, durations)
        beam = beam_of(network, size, durations, synchronous=synchronous)
        readings, _ = beam.decode(encoded, lengths, beam.initial_state(6), [automaton] * 6)
        for reading, values, length in zip(readings, encoded, lengths, strict=True):
            plain = PlainBeam(network, size, durations, automaton=automaton, synchronous=synchronous)
            expected = plain.run(values, length)
            assert [whole(reading, one) for one in reading.nbest] == [list(one["text"]) for one in expected]
            scores = [one.score for one in reading.nbest]
            assert scores == pytest.approx([one["rank"] for one in expected], abs=1e-5)


def test_boosting_changes_what_is_found(batch):
    encoded, lengths = batch
    beam = beam_of(RandomJoint(), 4)
    plain, _ = beam.decode(encoded, lengths, beam.initial_state(6))
    automata = [build(PHRASES, 3.0) if row in {0, 3} else PhraseAutomaton.nothing() for row in range(6)]
    boosted, _ = beam.decode(encoded, lengths, beam.initial_state(6), automata)
    for row in range(6):
        same = same_tokens(plain[row].best, boosted[row].best)
        assert same == (row not in {0, 3})


def all_texts(network, encoded, frames, durations, max_symbols):
    """Total probability of each (text, frame after the end), over all alignments."""
    total = {}

    def go(state, text, at, symbols, score):
        if at >= frames:
            total[text, at] = np.logaddexp(total.get((text, at), -math.inf), score)
            return
        target = text[-1] if text else BLANK
        scores, *after = network.step(encoded[:, at][None], np.array([target], np.int32), *state)
        tokens = log_softmax(scores[0, : BLANK + 1])
        steps = list(zip(durations, log_softmax(scores[0, BLANK + 1 :]), strict=True)) or [(0, 0.0)]
        for duration, more in steps:
            go(state, text, at + max(duration, 1), 0, score + tokens[BLANK] + more)
            for token in range(BLANK):
                step = 1 if duration == 0 and symbols + 1 >= max_symbols else duration
                count = 0 if step else symbols + 1
                new_score = score + tokens[token] + more
                go(after, (*text, token), at + step, count, new_score)

    empty = np.zeros((network.layers, 1, network.width), np.float32)
    go((empty, empty), (), 0, 0, 0.0)
    return total


@pytest.mark.parametrize(("durations", "frames"), [((0, 1), 2), ((), 2)])
def test_a_beam_of_everything_sums_over_all_alignments(durations, frames):
    network = RandomJoint(3, durations)
    encoded = np.random.default_rng(4).standard_normal((1, FEATURES, frames)).astype(np.float32)
    total = all_texts(network, encoded[0], frames, durations, max_symbols=1)
    assert np.logaddexp.reduce(list(total.values())) == pytest.approx(0.0, abs=1e-5)
    # More places than there are ways on in any step.
    beam = beam_of(network, 40 * len(total), durations, max_symbols=1)
    readings, state = beam.decode(encoded, np.array([frames]), beam.initial_state(1))
    alive = np.isfinite(state.scores[0])
    assert np.count_nonzero(alive) == len(total)
    found = sorted(zip(state.counts[0][alive].tolist(), state.scores[0][alive].tolist(), strict=True))
    expected = sorted((len(text), score) for (text, _), score in total.items())
    assert [count for count, _ in found] == [count for count, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-4)
    best = max(total, key=lambda key: total[key] / (len(key[0]) + 1))
    assert tuple(readings[0].best.ids.tolist()) == best[0]
    assert len(readings[0].nbest) == len({text for text, _ in total})


@KINDS
@pytest.mark.parametrize("size", [1, 2, 3, 7, 13])
@pytest.mark.parametrize("phrases", [[], PHRASES])
def test_pieces_equal_one_shot(batch, durations, size, phrases):
    encoded, _ = batch
    beam = beam_of(RandomJoint(0, durations), 4, durations)
    automata = [build(phrases, 1.5)] * 6
    (readings, whole_state) = beam.decode(encoded, np.full(6, 30), beam.initial_state(6), automata)
    state, settled = beam.initial_state(6), [[[], [], [], []] for _ in range(6)]
    for start in range(0, 30, size):
        piece = encoded[:, :, start : start + size]
        parts, state = beam.decode(piece, np.full(6, piece.shape[2]), state, automata)
        for columns, part in zip(settled, parts, strict=True):
            for column, new, shift in zip(columns, fields(part.settled), (0, start, 0, 0), strict=True):
                column += [value + shift for value in new]
    assert any(columns[0] for columns in settled)
    for columns, part, reading in zip(settled, parts, readings, strict=True):
        assert len(part.nbest) == len(reading.nbest)
        for one, expected in zip(part.nbest, reading.nbest, strict=True):
            assert one.score == pytest.approx(expected.score, rel=0, abs=SUM_ERROR)
            joined = zip(fields(reading.settled), fields(expected.tokens), strict=True)
            new = zip(columns, fields(one.tokens), (0, start, 0, 0), strict=True)
            for (old, tail), (before, after, shift) in zip(joined, new, strict=True):
                found = before + [value + shift for value in after]
                assert found == pytest.approx(old + tail, rel=0, abs=ROUNDED)
    for name in ("scores", "targets", "hidden", "cell", "skip", "phrase", "counts", "hashes"):
        alive = np.isfinite(state.scores)
        assert same_state(name, getattr(state, name)[alive], getattr(whole_state, name)[alive])


def test_the_network_runs_once_per_step_for_all_rows(batch):
    encoded, lengths = batch
    network = RandomJoint()
    beam = beam_of(network, 4)
    beam.decode(encoded, lengths, beam.initial_state(6))
    together, calls = len(network.rows_seen), []
    for row in range(6):
        alone = RandomJoint()
        beam = beam_of(alone, 4)
        beam.decode(encoded[row : row + 1], lengths[row : row + 1], beam.initial_state(1))
        calls.append(len(alone.rows_seen))
    assert together == max(calls)


@pytest.mark.parametrize("max_tail", [1, 3])
def test_open_hypotheses_are_bounded(batch, max_tail):
    encoded, _ = batch
    beam = beam_of(RandomJoint(), 6, max_tail=max_tail)
    state, counts = beam.initial_state(6), np.zeros(6, int)
    for start in range(0, 30, 5):
        parts, state = beam.decode(encoded[:, :, start : start + 5], np.full(6, 5), state)
        counts += [len(part.settled.ids) for part in parts]
        for part in parts:
            assert all(len(one.tokens.ids) <= max_tail for one in part.nbest)
        alive = np.isfinite(state.scores)
        assert alive.any(axis=1).all()
        assert np.array_equal((counts[:, None] + state.tail_counts)[alive], state.counts[alive])
    assert counts.min() > 3


def test_the_rows_of_a_state_can_be_kept_apart(batch):
    encoded, _ = batch
    decoder = DecoderRows(beam_of(RandomJoint(), 4))

    def decode(speech, state):
        return decoder.decode(speech, np.full(len(speech), speech.shape[2]), state, None)

    _, state = decode(encoded[:, :, :11], decoder.initial(6))
    together, _ = decode(encoded[:, :, 11:], state)
    some = np.array([4, 1])
    own = {name: values[some] for name, values in state.items()}
    apart, _ = decode(encoded[some, :, 11:], own)
    for reading, row in zip(apart, some, strict=True):
        assert same_tokens(reading.best, together[row].best)
        expected = [one.score for one in together[row].nbest]
        assert [one.score for one in reading.nbest] == pytest.approx(expected, rel=0, abs=SUM_ERROR)


def test_scores_of_another_kind_of_network_are_an_error(batch):
    beam = beam_of(RandomJoint(0, ()), 2)
    with pytest.raises(InferenceError, match="classes"):
        beam.decode(*batch, beam.initial_state(6))
