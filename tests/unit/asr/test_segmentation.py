"""How a stream is cut into utterances, whatever the pieces in which it comes."""

import numpy as np
import pytest

from parley.asr.messages import OnsetEvent, OnsetLostEvent
from parley.asr.segmenter.segmentation import (
    StreamSegmenter,
    UtteranceAudio,
    UtteranceBegan,
    UtteranceEnded,
    detect,
)
from parley.errors import InferenceError
from parley.protocol import VadOptions

MS = 16


class Script:
    """Says that certain times (milliseconds) are speech; keeps how many windows each call had."""

    def __init__(self, *speech):
        self.speech = speech
        self.calls = []
        self.failure = None

    def detect(self, windows, counts, state, context):
        if self.failure:
            raise self.failure
        self.calls.append(counts.tolist())
        probabilities = np.zeros(windows.shape[:2], np.float32)
        for row, count in enumerate(counts):
            for step in range(count):
                # A sample's value is its own time in milliseconds: see `ramp`.
                at = windows[row, step, 0] * 32768
                probabilities[row, step] = 0.9 if any(a <= at < b for a, b in self.speech) else 0.02
        return probabilities, state + counts[:, None, None], context


def ramp(milliseconds):
    """Audio in which every sample says at which millisecond it is."""
    return np.repeat(np.arange(milliseconds), MS).astype(np.int16)


def track(silence_ms=96, **options):
    return StreamSegmenter(
        VadOptions(silence_ms=silence_ms, **options), preroll_ms=320, max_utterance_ms=60_000
    )


def cut(speech_track, audio, script, *, chunk_ms):
    """The utterances as (first millisecond, audio), and the track."""
    found = []
    for at in range(0, len(audio), chunk_ms * MS):
        windows = speech_track.accept(audio[at : at + chunk_ms * MS])
        (scored,) = detect([speech_track], [windows], script) if len(windows) else [np.zeros(0)]
        for event in speech_track.detected(scored):
            if isinstance(event, UtteranceBegan):
                found.append((event.start // MS, []))
            elif isinstance(event, UtteranceAudio):
                found[-1][1].append(event.samples)
            else:
                assert isinstance(event, UtteranceEnded | OnsetEvent)
    return [(start, np.concatenate(pieces)) for start, pieces in found]


@pytest.mark.parametrize("chunk_ms", [1, 32, 80, 1000, 10_000])
def test_every_utterance_is_one_unbroken_piece_of_the_stream(chunk_ms):
    audio = ramp(4096)
    script = Script((640, 1280), (1408, 2048), (3008, 3200))
    utterances = cut(track(), audio, script, chunk_ms=chunk_ms)
    assert [start for start, _ in utterances] == [320, 1328, 2688]
    for start, samples in utterances:
        assert np.array_equal(samples, audio[start * MS : start * MS + len(samples)])
    # Each reaches from its pre-roll to the silence that ended it.
    assert [len(samples) // MS for _, samples in utterances] == [1376 - 320, 2144 - 1328, 3296 - 2688]


@pytest.mark.parametrize("flush", [False, True])
def test_an_onset_is_reported_with_its_window_and_always_ends(flush):
    speech_track, script = track(), Script((64, 128), (320, 10_000))
    audio, reported = ramp(352), []
    for at in range(0, len(audio), 16 * MS):
        piece = audio[at : at + 16 * MS]
        windows = speech_track.accept(piece, flush=flush and at + len(piece) == len(audio))
        (scored,) = detect([speech_track], [windows], script) if len(windows) else [np.zeros(0)]
        reported += [(at // MS + 16, event) for event in speech_track.detected(scored)]
    lost = [(352, OnsetLostEvent())] if flush else []
    assert reported == [
        (96, OnsetEvent(at_ms=64)),
        (160, OnsetLostEvent()),
        (352, OnsetEvent(at_ms=320)),
        *lost,
    ]


def test_silence_does_not_come_out_and_is_not_kept():
    quiet = track()
    assert cut(quiet, ramp(20_000), Script(), chunk_ms=80) == []
    assert len(quiet._audio) <= (320 + 32) * MS


def test_a_long_silence_that_ends_an_utterance_is_kept_by_half():
    speech_track = track(silence_ms=5000)
    script = Script((640, 1280), (6272, 7000))
    (before,) = cut(speech_track, ramp(6200), script, chunk_ms=32)
    assert len(speech_track._audio) <= (6200 - 1280) * MS // 2 + 512
    assert before[0] == 320


def test_many_streams_are_one_call_and_each_keeps_its_own_memory():
    script = Script((640, 1280))
    tracks = [track() for _ in range(3)]
    audio = ramp(1000)
    windows = [own.accept(audio[: length * MS]) for own, length in zip(tracks, (64, 640, 960), strict=True)]
    scored = detect(tracks, windows, script)
    assert script.calls == [[2, 20, 30]]
    assert [len(probabilities) for probabilities in scored] == [2, 20, 30]
    assert [own.vad_state[0, 0] for own in tracks] == [2, 20, 30]
    assert [probabilities.max() > 0.5 for probabilities in scored] == [False, False, True]


def test_a_network_that_fails_changes_nothing():
    script = Script()
    script.failure = InferenceError("out of order")
    speech_track = track()
    with pytest.raises(InferenceError):
        detect([speech_track], [speech_track.accept(ramp(64))], script)
    assert not speech_track.vad_state.any()


class Everything:
    """Hears speech in all of it."""

    def detect(self, windows, counts, state, context):
        return np.full(windows.shape[:2], 0.9, np.float32), state, context


@pytest.mark.parametrize("chunk_ms", [20, 32, 500])
def test_talk_behind_the_caller_ends_no_utterance_unless_it_is_ignored(chunk_ms):
    rng = np.random.default_rng(0)

    def noise(level, milliseconds):
        return (level * rng.standard_normal(milliseconds * MS)).astype(np.int16)

    words = np.concatenate([part for _ in range(4) for part in (noise(3_000, 320), noise(500, 96))])
    audio = np.concatenate([noise(500, 3_200), words, noise(500, 1_600)])
    found = {}
    for ignored in (False, True):
        talk = track(ignore_background=ignored)
        events = []
        for at in range(0, len(audio), chunk_ms * MS):
            twin = talk.fork()  # a chunk that failed is sent again
            for _ in range(2):
                talk = twin.fork()
                windows = talk.accept(audio[at : at + chunk_ms * MS])
                (scored,) = detect([talk], [windows], Everything()) if len(windows) else [np.zeros(0)]
                happened = talk.detected(scored)
            events += [one.event for one in happened if isinstance(one, UtteranceBegan | UtteranceEnded)]
        found[ignored] = [event.at_ms for event in events]
    assert found[False] == [0]
    begun, ended = found[True][-2:]
    assert len(found[True]) == 4
    assert begun == pytest.approx(3_200, abs=70)
    assert ended == pytest.approx(3_200 + 4 * 416 - 96 + 192, abs=70)
