"""Many streams in one step of a streaming model: partial texts, final ones, and what fails."""

from itertools import pairwise

import numpy as np
import pytest
from streaming_fakes import LOOK_AHEADS, MS, UTTERANCE, Model, feed, speech

from parley.asr.messages import (
    AsrFallbackEvent,
    AsrOptions,
    OnsetEvent,
    OnsetLostEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscribeReply,
    TranscribeRequest,
    TranscriptEvent,
)
from parley.asr.service import ChunkRequest, ChunkResult
from parley.errors import (
    InferenceError,
    InvalidMessageError,
    OverloadedError,
    UnsupportedLanguageError,
)
from parley.protocol import Alternative, Word


def texts(events, *, final):
    return [event.text for event in events if isinstance(event, TranscriptEvent) and event.is_final == final]


def replaced(events):
    return [
        (event.from_model, event.to_model, event.reason)
        for event in events
        if isinstance(event, AsrFallbackEvent)
    ]


@pytest.fixture(scope="module")
def own():
    """The streaming model's own final text of an utterance."""
    return texts(feed(Model(), speech(*UTTERANCE))[1], final=True)


@pytest.fixture
def record_waits(monkeypatch):
    """Waits for final texts advance a model's clock and are recorded."""

    def record(model):
        waits = []

        def wait(_, timeout):
            waits.append(timeout)
            model.now += timeout

        monkeypatch.setattr("parley.asr.streaming.final_transcripts.wait", wait)
        return waits

    return record


def test_the_events_of_an_utterance_come_in_order():
    _, events = feed(Model(), speech(*UTTERANCE))
    assert events[:2] == [OnsetEvent(at_ms=640), SpeechStartedEvent(utterance=1, at_ms=640)]
    assert events[-2] == SpeechStoppedEvent(utterance=1, at_ms=2240, detected_at_ms=2560)
    assert events[-1].is_final
    partials = texts(events, final=False)
    assert len(partials) > 5
    assert all(later.startswith(earlier) for earlier, later in pairwise(partials))
    assert len(set(partials)) == len(partials)
    stable = [event.text.split()[: event.stable_words] for event in events if hasattr(event, "text")]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(stable))
    assert len(stable[-1]) == len(events[-1].text.split())
    assert events[-1].text.startswith(partials[-1])


def test_words_lie_within_the_utterance_and_are_left_out_on_request():
    _, events = feed(Model(), speech(*UTTERANCE))
    words = events[-1].words
    assert [word.text for word in words] == events[-1].text.split()
    assert words[0].start_ms >= 640 - 320
    assert [word.start_ms for word in words] == sorted(word.start_ms for word in words)
    assert words[-1].end_ms <= 2560 + 160
    _, events = feed(Model(), speech(*UTTERANCE), words=False)
    assert all(event.words == [] for event in events if isinstance(event, TranscriptEvent))


@pytest.mark.parametrize("lookahead_ms", LOOK_AHEADS)
@pytest.mark.parametrize("chunk_ms", [20, 80, 500, 10_000])
def test_chunk_sizes_do_not_change_the_text(lookahead_ms, chunk_ms):
    audio = speech(*UTTERANCE, *UTTERANCE)
    _, expected = feed(Model(), audio, chunk_ms=32, lookahead_ms=lookahead_ms)
    _, found = feed(Model(), audio, chunk_ms=chunk_ms, lookahead_ms=lookahead_ms)
    assert texts(found, final=True) == texts(expected, final=True)
    assert all(texts(found, final=True))


def test_look_aheads_have_different_partials_and_an_unknown_one_is_refused():
    audio = speech(*UTTERANCE)
    model = Model(look_aheads={80: 8, 560: 56})
    assert len(texts(feed(model, audio, lookahead_ms=560)[1], final=False)) < len(
        texts(feed(model, audio, lookahead_ms=80)[1], final=False)
    )
    with pytest.raises(InvalidMessageError, match="80, 560"):
        model.pipeline.new_stream(AsrOptions(lookahead_ms=160))
    with pytest.raises(InvalidMessageError, match="partial_interval_ms"):
        model.pipeline.new_stream(AsrOptions(partial_interval_ms=-1))


def test_phrases_are_favoured_in_their_own_stream_only():
    audio, models = speech(*UTTERANCE), [Model() for _ in range(3)]
    alone, boosted = (
        texts(feed(model, audio, phrases=phrases, phrase_weight=4.0)[1], final=True)[0]
        for model, phrases in zip(models, ([], ["b"]), strict=False)
    )
    assert boosted.count("b") > alone.count("b")
    chunks = [
        ChunkRequest(models[2].pipeline.new_stream(AsrOptions(phrases=phrases, phrase_weight=4.0)), audio)
        for phrases in ([], ["b"])
    ]
    found = [texts(result.reply.events, final=True) for result in models[2].pipeline.step(chunks)]
    assert found == [[alone], [boosted]]
    with pytest.raises(InvalidMessageError, match="phrase_weight"):
        models[0].pipeline.new_stream(AsrOptions(phrase_weight=11.0))


def test_streams_of_several_languages_share_steps_and_keep_their_prompts():
    prompts = {"en": 0, "es": 1, "auto": 2}
    audio = speech(*UTTERANCE)
    alone = {
        language: texts(feed(Model(prompts=prompts), audio, language=language)[1], final=True)
        for language in prompts
    }
    assert len({tuple(found) for found in alone.values()}) == 3
    model = Model(prompts=prompts)
    chunks = [
        ChunkRequest(model.pipeline.new_stream(AsrOptions(language=language)), audio)
        for language in ("es", "auto", "en", "es-MX")
    ]
    found = [texts(result.reply.events, final=True) for result in model.pipeline.step(chunks)]
    assert found == [alone["es"], alone["auto"], alone["en"], alone["es"]]
    with pytest.raises(UnsupportedLanguageError, match="'de' is not understood; only en, es, auto"):
        model.pipeline.new_stream(AsrOptions(language="de"))
    # A model without prompts does not look at the language: its service does.
    assert texts(feed(Model(), audio, language="de")[1], final=True) == alone["en"]


def test_model_of_final_texts_is_rarely_asked_for_a_language_it_lacks():
    audio = speech(*UTTERANCE)
    model = Model(finals="offline", prompts={"en": 0, "es": 1})
    own = texts(feed(Model(prompts={"en": 0, "es": 1}), audio, language="es")[1], final=True)
    model.transcribers.failures["offline"] = UnsupportedLanguageError("only en")
    _, events = feed(model, audio, language="es")
    assert replaced(events) == [("offline", "streaming", "unsupported_language")]
    assert texts(events, final=True) == own
    asked = len(model.transcribers.submitted)
    _, events = feed(model, audio, language="es")
    assert (replaced(events), texts(events, final=True)) == ([], own)
    assert len(model.transcribers.submitted) == asked
    # Another refusal after a while is no news; a model that was loaded again may have more languages.
    model.now = 61.0
    _, events = feed(model, audio, language="es")
    assert (replaced(events), texts(events, final=True)) == ([], own)
    assert len(model.transcribers.submitted) == asked + 1
    assert len(model.counted) == 1
    del model.transcribers.failures["offline"]
    _, events = feed(model, audio, language="en")
    assert texts(events, final=True)[0].startswith("offline")
    assert texts(feed(model, audio, language="es")[1], final=True) == own
    model.now = 122.0
    assert texts(feed(model, audio, language="es")[1], final=True)[0].startswith("offline")


def test_a_text_that_was_begun_before_its_language_was_refused_fails_alone():
    model = Model(finals="offline", early_ms=96, prompts={"en": 0, "es": 1})
    model.transcribers.failures["offline"] = UnsupportedLanguageError("only en")
    audio = speech(*UTTERANCE)
    # The second stream's utterance has a text under way when the first one's is refused.
    delays = (0, 80, 240)
    streams = [model.pipeline.new_stream(AsrOptions(language=language)) for language in ("es", "es", "en")]
    calls = [
        np.concatenate([speech((delay, False)), audio, speech((240 - delay, False))]) for delay in delays
    ]
    events = [[] for _ in streams]
    for start in range(0, len(calls[0]), 80 * MS):
        results = model.pipeline.step(
            [
                ChunkRequest(stream, call[start : start + 80 * MS])
                for stream, call in zip(streams, calls, strict=True)
            ]
        )
        streams = [result.stream for result in results]
        for row, result in enumerate(results):
            events[row] += result.reply.events
    refused = [("offline", "streaming", "unsupported_language")]
    assert [replaced(found) for found in events] == [refused, [], refused]
    assert all(len(texts(found, final=True)) == 1 for found in events)


def test_finals_only():
    _, events = feed(Model(), speech(*UTTERANCE), partial_interval_ms=0)
    assert [type(event) for event in events] == [
        OnsetEvent,
        SpeechStartedEvent,
        SpeechStoppedEvent,
        TranscriptEvent,
    ]


def test_an_onset_is_reported_at_once_and_lost_if_no_utterance_follows():
    model = Model()
    stream, events = feed(model, speech((640, False), (32, True)), last=False)
    assert events == [OnsetEvent(at_ms=640)]
    stream, events = feed(model, speech((128, False), (32, True)), stream=stream, last=False)
    assert events == [OnsetLostEvent(), OnsetEvent(at_ms=800)]
    _, events = feed(model, speech((8, True)), stream=stream, flush=True)
    assert events == [OnsetLostEvent()]
    assert model.recognizer.free == 8


def test_silence_reaches_no_encoder_and_takes_no_slot():
    model = Model(slots=1)
    feed(model, speech((5000, False)))
    assert [encoder.calls for encoder in model.encoders.values()] == [[], [], [], []]
    stream, _ = feed(model, speech((640, False), (800, True)), last=False)
    assert model.recognizer.free == 0
    feed(model, speech((640, False)), stream=stream)
    assert model.recognizer.free == 1


def test_flush_recognises_every_sample_that_was_sent():
    audio = speech((640, False), (1600, True))
    _, flushed = feed(Model(), audio, flush=True)
    assert texts(flushed, final=True)[0]
    assert flushed[-2].at_ms == 2240
    _, events = feed(Model(), speech(*UTTERANCE))
    # The silence that would have ended it is replaced by the silence that is put at the end.
    assert texts(events, final=True)[0].startswith(texts(flushed, final=True)[0][:-2])


def test_a_chunk_of_silence_follows_the_last_word():
    model = Model(look_aheads={160: 16})
    feed(model, speech((640, False), (1600, True)), flush=True)
    frames = (320 + 1600) // 10
    assert len(model.encoders[16].calls) == -(-(frames + 16) // 16)


def test_step_is_one_call_to_each_network():
    model = Model()
    streams = [feed(model, speech((320, False), (320, True), seed=seed), last=False)[0] for seed in range(4)]
    model.detector.calls.clear()
    model.encoders[8].calls.clear()
    model.joint.rows_seen.clear()
    model.pipeline.step([ChunkRequest(stream, speech((80, True))) for stream in streams])
    assert model.detector.calls == [4]
    assert model.encoders[8].calls == [4]
    assert model.joint.rows_seen[0] == 4


def test_streams_of_different_look_aheads_share_the_decoder():
    model = Model()
    streams = [
        feed(model, speech((320, False), (1440, True)), last=False, lookahead_ms=lookahead)[0]
        for lookahead in LOOK_AHEADS
    ]
    for encoder in model.encoders.values():
        encoder.calls.clear()
    model.joint.rows_seen.clear()
    results = model.pipeline.step([ChunkRequest(stream, speech((1120, True))) for stream in streams])
    assert all(isinstance(item, ChunkResult) for item in results)
    assert {encoder.calls[0] for encoder in model.encoders.values()} == {1}
    assert max(model.joint.rows_seen) == 4


# --- many streams ---------------------------------------------------------------------------


def scenes():
    """64 calls: utterances of different lengths, pauses, piece sizes and look-aheads."""
    rng = np.random.default_rng(3)
    for number in range(64):
        pieces = [(int(rng.integers(40, 900)), False)]
        for _ in range(int(rng.integers(1, 4))):
            pieces += [(int(rng.integers(200, 1500)), True), (int(rng.integers(340, 900)), False)]
        yield (
            speech(*pieces, seed=number),
            int(rng.choice([20, 32, 80, 100, 333])),
            int(rng.choice(list(LOOK_AHEADS))),
        )


def without_confidences(events):
    """Everything but the confidences, whose last digits may depend on the batch."""
    return [
        (event.utterance, event.text, event.is_final, [(w.text, w.start_ms, w.end_ms) for w in event.words])
        if isinstance(event, TranscriptEvent)
        else event
        for event in events
    ]


def test_64_interleaved_streams_equal_single_streams():
    alone = Model()
    calls = list(scenes())
    expected = [
        feed(alone, audio, chunk_ms=chunk_ms, lookahead_ms=lookahead)[1]
        for audio, chunk_ms, lookahead in calls
    ]
    model = Model(slots=64)
    rng = np.random.default_rng(4)
    streams = [model.pipeline.new_stream(AsrOptions(lookahead_ms=lookahead)) for _, _, lookahead in calls]
    positions, found = [0] * 64, [[] for _ in calls]
    failures = 0
    while rows := [row for row, (audio, _, _) in enumerate(calls) if positions[row] < len(audio)]:
        # Some streams have no chunk in this step; in some steps a network fails.
        rows = [row for row in rows if rng.random() < 0.7]
        broken = rng.random()
        model.detector.failure = InferenceError("out of order") if broken < 0.1 else None
        model.fail(InferenceError("out of order") if 0.1 < broken < 0.2 else None)
        chunks = []
        for row in rows:
            audio, chunk_ms, _ = calls[row]
            end = positions[row] + chunk_ms * MS
            chunks.append(ChunkRequest(streams[row], audio[positions[row] : end], last=end >= len(audio)))
        for row, result in zip(rows, model.pipeline.step(chunks), strict=True):
            if isinstance(result, InferenceError):
                failures += 1
                continue
            streams[row] = result.stream
            positions[row] += calls[row][1] * MS
            found[row] += result.reply.events
            if positions[row] >= len(calls[row][0]):
                model.pipeline.release(streams[row])
    assert failures > 100
    assert [without_confidences(events) for events in found] == [
        without_confidences(events) for events in expected
    ]
    assert model.recognizer.free == 64
    assert sum(len(texts(events, final=True)) for events in found) > 64


@pytest.mark.parametrize("poison", ["not finite", "fatal"])
def test_a_row_that_the_network_cannot_take_fails_alone(poison):
    beginning, rest = np.split(speech((320, False), (720, True)), [880 * MS])
    model = Model()
    (alone,) = model.pipeline.step([ChunkRequest(feed(model, beginning, last=False)[0], rest)])
    good, bad = (feed(model, beginning, last=False)[0] for _ in range(2))
    model.encoders[8].poison = poison
    first, second = model.pipeline.step([ChunkRequest(good, rest), ChunkRequest(bad, np.zeros_like(rest))])
    assert isinstance(second, InferenceError)
    assert first.reply.events == alone.reply.events != []


# --- failures and other models --------------------------------------------------------------


@pytest.mark.parametrize("broken", ["detector", "encoder", "joint"])
def test_after_a_failure_the_same_piece_can_be_sent_again(broken, monkeypatch):
    audio = speech(*UTTERANCE, *UTTERANCE)
    expected = feed(Model(), audio, chunk_ms=500)[1]
    model = Model()
    error = InferenceError("out of order")
    stream, found, failures = model.pipeline.new_stream(AsrOptions()), [], 0

    def fails(*_):
        raise error

    for start in range(0, len(audio), 500 * MS):
        chunk = ChunkRequest(stream, audio[start : start + 500 * MS])
        model.detector.failure = error if broken == "detector" else None
        model.fail(error if broken == "encoder" else None)
        with monkeypatch.context() as patch:
            if broken == "joint":
                patch.setattr(model.joint, "step", fails)
            (result,) = model.pipeline.step([chunk])
        model.detector.failure = None
        model.fail(None)
        if isinstance(result, InferenceError):
            failures += 1
            (result,) = model.pipeline.step([chunk])
        stream = result.stream
        found += result.reply.events
    assert failures > 3
    assert found == expected
    assert model.recognizer.free == 8


def test_a_bug_in_a_step_loses_no_slot(monkeypatch):
    model = Model()
    stream = model.pipeline.new_stream(AsrOptions())
    monkeypatch.setattr(model.recognizer, "recognize", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.pipeline.step([ChunkRequest(stream, speech((320, False), (960, True)))])
    assert model.recognizer.free == 8


def test_without_a_slot_and_without_another_model_the_piece_is_refused():
    model = Model(slots=1)
    first, _ = feed(model, speech((320, False), (640, True)), last=False)
    second = model.pipeline.new_stream(AsrOptions())
    (refused,) = model.pipeline.step([ChunkRequest(second, speech((320, False), (640, True)))])
    assert isinstance(refused, OverloadedError)
    feed(model, speech((640, False)), stream=first)
    (result,) = model.pipeline.step([ChunkRequest(second, speech((320, False), (640, True)))])
    assert isinstance(result, ChunkResult)


def test_without_a_slot_another_model_transcribes_the_utterance():
    model = Model(slots=0, fallback="other")
    _, events = feed(model, speech(*UTTERANCE))
    assert texts(events, final=False) == []
    assert texts(events, final=True) == [f"other {320 + 1600 + 320}"]
    assert replaced(events) == [("streaming", "other", "overloaded")]


def test_a_final_text_of_another_model_has_all_the_audio():
    model = Model(finals="big")
    audio = speech(*UTTERANCE)
    _, events = feed(model, audio, words=False, phrases=["a"], phrase_weight=3.0)
    assert texts(events, final=True) == ["big 2240"]
    assert len(texts(events, final=False)) > 5
    ((_, sent, request),) = model.transcribers.submitted
    assert np.array_equal(sent, audio[320 * MS : 2560 * MS])
    assert request == TranscribeRequest(language="en", words=False, phrases=["a"], phrase_weight=3.0)
    assert events[-1].words[0].start_ms == 320 + 10
    assert events[-1].stable_words == 2
    assert model.counted == []


@pytest.mark.parametrize("error", [InferenceError("broken"), ZeroDivisionError("a bug")])
def test_a_final_text_that_fails_is_replaced_by_the_streaming_models(own, error):
    model = Model(finals="big")
    model.transcribers.failures["big"] = error
    _, events = feed(model, speech(*UTTERANCE))
    assert texts(events, final=True) == own
    reason = getattr(error, "code", "internal_error")
    assert replaced(events) == [("big", "streaming", reason)]
    assert [event.reason for event in model.counted] == [reason]


def test_a_slow_final_text_does_not_delay_a_step_and_keeps_its_place():
    model = Model(finals="big", slow=["big"])
    stream, events = feed(model, speech(*UTTERANCE), last=False)
    assert isinstance(events[-1], SpeechStoppedEvent)
    stream, more = feed(model, speech((640, True)), stream=stream, last=False)
    assert more == []
    model.transcribers.answer()
    _, more = feed(model, speech((80, True)), stream=stream, last=False)
    assert more[0].text == "big 2240"
    assert more[1:3] == [OnsetEvent(at_ms=2880), SpeechStartedEvent(utterance=2, at_ms=2880)]
    assert texts(more, final=False)


def test_only_the_step_that_asks_for_a_final_text_waits_a_little(record_waits):
    model = Model(finals="big", patience_s=0.5, slow=["big"])
    waits = record_waits(model)
    stream, _ = feed(model, speech(*UTTERANCE), last=False)
    feed(model, speech((400, False)), stream=stream, last=False)
    assert waits == [0.5]


def test_a_final_text_that_is_late_is_replaced_and_held_events_follow(own):
    model = Model(finals="big", slow=["big"])
    stream, _ = feed(model, speech(*UTTERANCE), last=False)
    model.now = 1.9
    stream, events = feed(model, speech((80, False)), stream=stream, last=False)
    assert events == []
    model.now = 2.1
    stream, events = feed(model, speech((80, False)), stream=stream, last=False)
    assert replaced(events) == [("big", "streaming", "deadline_exceeded")]
    assert texts(events, final=True) == own
    assert model.transcribers.open[0][0].cancelled()
    assert feed(model, speech((80, False)), stream=stream)[1] == []


def test_a_model_that_was_late_is_left_alone_for_a_while(own):
    model = Model(finals="big", fallback="other", slow=["big"])
    stream, _ = feed(model, speech(*UTTERANCE, (80, False)), last=False)
    model.now = 2.1
    feed(model, speech((80, False)), stream=stream)
    model.now = 12.0
    stream, events = feed(model, speech(*UTTERANCE))
    assert [name for name, *_ in model.transcribers.submitted] == ["big"]
    assert replaced(events) == [("big", "streaming", "deadline_exceeded")]
    assert texts(events, final=True) == own
    model.now = 12.2
    model.transcribers.slow.clear()
    _, events = feed(model, speech(*UTTERANCE))
    assert replaced(events) == []
    assert texts(events, final=True)[0].startswith("big")


def test_a_stream_that_ends_does_not_stop_the_others(own, record_waits):
    model = Model(finals="big", fallback="other", patience_s=0.01)
    model.transcribers.slow |= {"big", "other"}
    waits = record_waits(model)
    ending, _ = feed(model, speech(*UTTERANCE), last=False)
    assert waits == [0.01]
    other = model.pipeline.new_stream(AsrOptions())
    nothing = np.zeros(0, np.int16)
    ended, result = model.pipeline.step(
        [ChunkRequest(ending, nothing, last=True), ChunkRequest(other, speech((80, True)))]
    )
    assert waits == [0.01]
    assert [type(event) for event in result.reply.events] == [OnsetEvent]
    # The stream's last reply has a text all the same.
    assert replaced(ended.reply.events) == [("big", "streaming", "stream_ended")]
    assert texts(ended.reply.events, final=True) == own
    assert [call.cancelled() for call, *_ in model.transcribers.open] == [True]
    # Nothing has failed: nothing is counted, and the model is asked by the next stream.
    assert model.counted == []
    feed(model, speech(*UTTERANCE), last=False)
    assert [name for name, *_ in model.transcribers.submitted] == ["big", "big"]


def test_a_final_text_that_is_there_comes_with_the_end():
    model = Model(finals="big", slow=["big"])
    stream, _ = feed(model, speech(*UTTERANCE), last=False)
    model.transcribers.answer()
    (ended,) = model.pipeline.step([ChunkRequest(stream, np.zeros(0, np.int16), last=True)])
    assert texts(ended.reply.events, final=True) == ["big 2240"]
    assert replaced(ended.reply.events) == []


def test_a_flush_does_not_wait_and_its_text_comes_later(record_waits):
    model = Model(finals="big", patience_s=0.01, slow=["big"])
    waits = record_waits(model)
    stream, _ = feed(model, speech(*UTTERANCE[:2]), last=False)
    stream, events = feed(model, speech((20, True)), stream=stream, flush=True, last=False)
    assert isinstance(events[-1], SpeechStoppedEvent)
    # Nor does a second one for what the first has ended.
    stream, events = feed(model, speech((20, False)), stream=stream, flush=True, last=False)
    assert (events, waits) == ([], [0.01])
    model.transcribers.answer()
    (result,) = model.pipeline.step([ChunkRequest(stream, np.zeros(0, np.int16))])
    assert texts(result.reply.events, final=True)[0].startswith("big")


def test_when_the_streaming_model_fails_another_transcribes_the_whole_utterance():
    model = Model(fallback="other")
    audio = speech(*UTTERANCE)
    stream, before = feed(model, audio[: 1200 * MS], last=False)
    assert texts(before, final=False)
    model.fail(InferenceError("out of order"))
    stream, events = feed(model, audio[1200 * MS :], stream=stream, last=False)
    assert replaced(events) == [("streaming", "other", "inference_failed")]
    assert isinstance(events[0], AsrFallbackEvent)
    assert texts(events, final=False) == []
    assert texts(events, final=True) == ["other 2240"]
    assert np.array_equal(model.transcribers.submitted[0][1], audio[320 * MS : 2560 * MS])
    assert len(model.counted) == 1
    assert model.recognizer.free == 8
    # The next utterance is tried again.
    model.fail(None)
    _, events = feed(model, audio, stream=stream)
    assert texts(events, final=False)
    assert texts(events, final=True)[0].startswith(texts(events, final=False)[-1])
    assert len(model.transcribers.submitted) == 1


def test_when_everything_fails_what_was_understood_before_is_the_final_text():
    model = Model(finals="big", fallback="other")
    model.transcribers.failures = {"big": OverloadedError("full"), "other": InferenceError("broken")}
    audio = speech(*UTTERANCE)
    stream, before = feed(model, audio[: 1200 * MS], last=False)
    model.fail(InferenceError("out of order"))
    _, events = feed(model, audio[1200 * MS :], stream=stream)
    assert replaced(events) == [
        ("streaming", "big", "inference_failed"),
        ("big", "other", "overloaded"),
        ("other", "streaming", "inference_failed"),
    ]
    assert texts(events, final=True) == [texts(before, final=False)[-1]]


def test_audio_is_stored_only_for_another_model():
    stream, _ = feed(Model(), speech((320, False), (1600, True)), last=False)
    assert len(stream.utterance.audio()) == 0
    stream, _ = feed(Model(fallback="other"), speech((320, False), (1600, True)), last=False)
    assert len(stream.utterance.audio()) == 1920 * MS


# --- the pieces of a turn -----------------------------------------------------------------------

PIECES = (*UTTERANCE, (800, True), (640, False))


def both_ends(model, audio, nbest=0):
    """A reading with a word at the beginning and one at the end."""
    end = len(audio) // MS
    words = [
        Word(text="early", start_ms=10, end_ms=20, confidence=0.5),
        Word(text="late", start_ms=end - 420, end_ms=end - 400, confidence=0.9),
    ]
    readings = ["early late", "early lake", "nearly late"][:nbest]
    alternatives = [Alternative(text=text, score=-1.0) for text in readings]
    return TranscribeReply(text="early late", confidence=0.7, words=words, alternatives=alternatives)


def finals(events):
    return [event for event in events if isinstance(event, TranscriptEvent) and event.is_final]


def test_the_pieces_of_a_turn_are_read_together():
    model = Model(finals="big")
    model.transcribers.reply = both_ends
    audio = speech(*PIECES)
    _, events = feed(model, audio, join_ms=20_000, nbest=3)
    first, second = (sent for _, sent, _ in model.transcribers.submitted)
    assert np.array_equal(first, audio[320 * MS : 2560 * MS])
    together = [audio[320 * MS : (2240 + 50) * MS], audio[(2880 - 50) * MS : 4000 * MS]]
    assert np.array_equal(second, np.concatenate(together))
    alone, joined = finals(events)
    assert (alone.text, alone.first, alone.before) == ("early late", 0, "")
    assert (joined.utterance, joined.text, joined.first, joined.before) == (2, "late", 1, "early")
    assert (joined.confidence, joined.stable_words) == (0.9, 1)
    assert [(word.start_ms, word.end_ms) for word in joined.words] == [(4000 - 420, 4000 - 400)]
    assert [own.text for own in joined.alternatives] == ["late", "lake"]


def test_word_times_stay_out_of_a_text_that_was_read_together_on_request():
    model = Model(finals="big")
    model.transcribers.reply = both_ends
    _, events = feed(model, speech(*PIECES), join_ms=20_000, words=False)
    assert [(event.text, event.words) for event in finals(events)][1] == ("late", [])


def test_after_a_turn_is_over_the_next_is_read_by_itself():
    model = Model(finals="big")
    model.transcribers.reply = both_ends
    audio = speech(*PIECES)
    # The next utterance may begin before its turn is marked as over.
    begun = (2880 + 320) * MS
    stream, _ = feed(model, audio[:begun], join_ms=20_000, last=False)
    (result,) = model.pipeline.step([ChunkRequest(stream, audio[begun : begun + 80 * MS], turn_over=True)])
    _, events = feed(model, audio[begun + 80 * MS :], stream=result.stream)
    assert [(event.text, event.first) for event in finals(events)] == [("early late", 0)]
    assert np.array_equal(model.transcribers.submitted[-1][1], audio[2560 * MS : 4000 * MS])


def test_a_turn_that_begins_with_a_noise_is_read_from_its_first_words_on():
    model = Model(finals="big")
    model.transcribers.reply = lambda *_: TranscribeReply(text="")
    _, events = feed(model, speech(*PIECES), join_ms=20_000)
    assert [event.first for event in finals(events)] == [0, 0]
    assert len(model.transcribers.submitted[1][1]) == 1440 * MS


def test_when_the_other_model_fails_the_own_text_is_of_this_utterance_alone():
    model = Model(finals="big")
    model.transcribers.failures["big"] = InferenceError("down")
    alone = feed(Model(), speech(*PIECES))[1]
    _, events = feed(model, speech(*PIECES), join_ms=20_000)
    assert [(one.text, one.first) for one in finals(events)] == [(one.text, 0) for one in finals(alone)]


# --- final texts that are begun early -----------------------------------------------------------


def early_model(**kwargs):
    return Model(finals="big", early_ms=96, slow=["big"], **kwargs)


def test_a_final_text_is_begun_before_the_utterance_is_over():
    model, audio = early_model(), speech(*UTTERANCE)
    # Speech ends at 2240 ms, the utterance at 2560 ms.
    stream, events = feed(model, audio[: 2400 * MS], last=False)
    ((_, sent, _),) = model.transcribers.submitted
    assert 2240 + 96 <= 320 + len(sent) // MS <= 2400
    model.transcribers.answer()
    _, events = feed(model, audio[2400 * MS :], stream=stream)
    assert texts(events, final=True) == [f"big {len(sent) // MS}"]
    assert len(model.transcribers.submitted) == 1


def test_a_stream_that_ends_calls_off_what_was_begun_for_it():
    model, audio = early_model(), speech(*UTTERANCE, *UTTERANCE)
    # The first utterance has ended, and the second may have.
    stream, _ = feed(model, audio[: (2880 + 2400) * MS], last=False)
    first, second = (call for call, *_ in model.transcribers.open)
    assert not first.cancelled()
    assert not second.cancelled()
    model.pipeline.release(stream)
    assert first.cancelled()
    assert second.cancelled()
    assert model.recognizer.free == 8
    assert model.counted == []


@pytest.mark.parametrize("chunk_ms", [40, 80, 400])
def test_a_text_that_was_begun_before_the_speaker_went_on_does_not_count(chunk_ms):
    model = early_model()
    audio = speech((640, False), (800, True), (200, False), (800, True), (640, False))
    model.transcribers.slow.clear()
    _, events = feed(model, audio, chunk_ms=chunk_ms)
    (text,) = texts(events, final=True)
    *wasted, (_, last, _) = model.transcribers.submitted
    assert text == f"big {len(last) // MS}"
    assert len(last) >= (320 + 1800 + 96) * MS
    assert all(len(sent) < 1500 * MS for _, sent, _ in wasted)


def test_a_text_that_was_begun_early_is_late_after_the_same_time():
    model = early_model()
    stream, _ = feed(model, speech(*UTTERANCE), last=False)
    model.now = 2.1
    (result,) = model.pipeline.step([ChunkRequest(stream, speech((80, False)))])
    assert replaced(result.reply.events) == [("big", "streaming", "deadline_exceeded")]


def test_a_text_that_was_begun_early_is_read_together_with_the_turn():
    model = early_model()
    model.transcribers.slow.clear()
    model.transcribers.reply = both_ends
    _, events = feed(model, speech(*PIECES), join_ms=20_000)
    assert [(event.text, event.first, event.before) for event in finals(events)] == [
        ("early late", 0, ""),
        ("late", 1, "early"),
    ]
    assert len(model.transcribers.submitted) == 2


def test_text_begun_with_a_finished_turn_does_not_count():
    model = early_model()
    model.transcribers.slow.clear()
    model.transcribers.reply = both_ends
    audio = speech(*PIECES)
    quiet = (2880 + 800 + 160) * MS  # the second utterance seems to be over
    stream, _ = feed(model, audio[:quiet], join_ms=20_000, last=False)
    (result,) = model.pipeline.step([ChunkRequest(stream, audio[quiet : quiet + 80 * MS], turn_over=True)])
    _, events = feed(model, audio[quiet + 80 * MS :], stream=result.stream)
    assert [(event.text, event.first) for event in finals(events)] == [("early late", 0)]
