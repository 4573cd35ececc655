"""Beam search in the streaming pipeline: the search of whole utterances, chunk by chunk."""

from itertools import pairwise

import numpy as np
import pytest
from asr_fakes import SUM_ERROR, same_tokens
from streaming_fakes import LOOK_AHEADS, MS, UTTERANCE, Model, feed, speech

from parley.asr.decoding.boosting import PhraseAutomaton, build
from parley.asr.messages import AsrOptions, TranscriptEvent
from parley.asr.service import ChunkRequest
from parley.asr.streaming.utterance import StreamingUtterance
from parley.errors import InferenceError

PHRASES = [[3, 7, 7], [7, 1], [5, 2, 9, 4]]


def said(model, audio, **options):
    """All transcripts of a call."""
    stream, events = feed(model, audio, **options)
    model.pipeline.release(stream)
    return [event for event in events if isinstance(event, TranscriptEvent)]


class Recorder:
    """An encoder that notes what it gave to each stream; there is one."""

    def __init__(self, encoder):
        self._encoder = encoder
        self.chunk, self.initial = encoder.chunk, encoder.initial
        self.encoded = []

    def encode(self, features, caches, prompts):
        encoded, lengths, after = self._encoder.encode(features, caches, prompts)
        self.encoded.append(encoded)
        return encoded, lengths, after


def recognized(model, audio, chunk, boosting):
    """An utterance that was recognised piece by piece."""
    utterance = StreamingUtterance(1, 0, chunk=chunk, boosting=boosting)
    utterance.slot = model.recognizer.acquire()
    for start in range(0, len(audio), 700):
        piece = audio[start : start + 700]
        model.recognizer.write(utterance, piece)
        utterance.push(piece)
        utterance.ended = start + 700 >= len(audio)
        model.recognizer.recognize([utterance]).keep([utterance.slot])
    return utterance


@pytest.mark.parametrize("phrases", [[], PHRASES])
@pytest.mark.parametrize("chunk", LOOK_AHEADS.values())
def test_chunk_by_chunk_is_the_search_of_the_whole_utterance(chunk, phrases):
    boosting = build(phrases, 1.5) if phrases else PhraseAutomaton.nothing()
    for seed in range(3):
        # No reading is dropped for being too different: a piece would drop others than the whole.
        model = Model(beam=4, max_tail=1_000)
        recorder = model.encoders[chunk] = Recorder(model.encoders[chunk])
        utterance = recognized(model, speech((1500, True), seed=seed), chunk, boosting)
        encoded = np.concatenate(recorder.encoded, axis=2)
        search = model.search()
        (reading,), _ = search.decode(
            encoded, np.array([encoded.shape[2]]), search.initial_state(1), [boosting]
        )
        found, best = utterance.tokens(), reading.best
        assert len(best.ids) > 5
        assert same_tokens(found, best)
        settled = reading.settled.ids.tolist()
        texts, scores = zip(*utterance.readings(), strict=True)
        assert list(texts) == [settled + one.tokens.ids.tolist() for one in reading.nbest]
        expected = [one.score for one in reading.nbest]
        assert list(scores) == pytest.approx(expected, rel=0, abs=SUM_ERROR)
        assert len(texts) > 1


def test_streams_together_hear_what_each_hears_alone():
    calls = [
        (speech((400, False), (900 + 70 * number, True), (640, False), seed=number), lookahead, phrases)
        for number, (lookahead, phrases) in enumerate(
            (lookahead, phrases) for lookahead in LOOK_AHEADS for phrases in ([], ["b", "c d"])
        )
    ]
    alone = Model(beam=3)
    options = [{"lookahead_ms": lookahead, "phrases": phrases, "nbest": 3} for _, lookahead, phrases in calls]
    expected = [
        said(alone, audio, chunk_ms=160, **own) for (audio, *_), own in zip(calls, options, strict=True)
    ]
    model = Model(beam=3)
    streams = [model.pipeline.new_stream(AsrOptions(**own)) for own in options]
    found = [[] for _ in calls]
    rng = np.random.default_rng(1)
    positions = [0] * len(calls)
    while rows := [row for row, (audio, *_) in enumerate(calls) if positions[row] < len(audio)]:
        rows = [row for row in rows if rng.random() < 0.7]
        ends = [positions[row] + 160 * MS for row in rows]
        model.fail(InferenceError("out of order") if rng.random() < 0.2 else None)
        results = model.pipeline.step(
            [
                ChunkRequest(streams[row], calls[row][0][positions[row] : end])
                for row, end in zip(rows, ends, strict=True)
            ]
        )
        for row, end, result in zip(rows, ends, results, strict=True):
            if isinstance(result, InferenceError):
                continue
            streams[row], positions[row] = result.stream, end
            found[row] += [event for event in result.reply.events if isinstance(event, TranscriptEvent)]

    def without_score(events):
        return [
            (event.text, event.is_final, event.stable_words, [own.text for own in event.alternatives])
            for event in events
        ]

    assert [without_score(events) for events in found] == [without_score(events) for events in expected]
    assert model.recognizer.free == 8


def test_a_beam_of_one_is_what_the_greedy_rail_says():
    audio = speech(*UTTERANCE, *UTTERANCE)
    greedy, beam = ([event.text for event in said(model, audio)] for model in (Model(), Model(beam=1)))
    assert greedy == beam


def test_a_final_text_comes_with_its_best_readings_on_request():
    audio = speech(*UTTERANCE)
    plain, asked = said(Model(beam=4), audio), said(Model(beam=4), audio, nbest=3)
    assert all(not event.alternatives for event in [*plain, *asked[:-1]])
    assert [event.text for event in plain] == [event.text for event in asked]
    found = asked[-1].alternatives
    assert len(found) == 3
    assert found[0].text == asked[-1].text
    assert all(better.score > worse.score for better, worse in pairwise(found))
    assert len({own.text for own in found}) == 3
    assert said(Model(), audio, nbest=3)[-1].alternatives == []


def test_another_models_readings_go_with_its_text():
    model = Model(beam=4, finals="big")
    events = said(model, speech(*UTTERANCE), nbest=2)
    assert model.transcribers.submitted[0][2].nbest == 2
    assert [own.text for own in events[-1].alternatives] == [events[-1].text]


def test_partial_texts_may_change_and_say_which_words_will_stay():
    changed = stable = broken = 0
    for seed in range(6):
        events = said(Model(beam=6), speech((640, False), (4000, True), (640, False), seed=seed))
        texts = [event.text.split() for event in events]
        for event, before, after in zip(events, texts, texts[1:], strict=False):
            changed += after[: len(before)] != before
            stable += event.stable_words
            broken += after[: event.stable_words] != before[: event.stable_words]
            assert event.stable_words < max(len(before), 1)
        assert events[-1].stable_words == len(texts[-1])
    assert changed > 0
    assert stable > 50
    assert broken * 20 <= stable
