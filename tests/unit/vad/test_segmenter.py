import math

import pytest

from parley.errors import InvalidMessageError
from parley.protocol import VadOptions
from parley.vad.segmenter import Segmenter, SpeechBegan, SpeechEnded

WINDOW = 512
LOUD, MIDDLE, QUIET = 0.9, 0.4, 0.1  # the default thresholds are 0.5 and 0.35


def run(probabilities, *, max_utterance_ms=60_000, **options):
    """The changes that a default segmenter reports."""
    segmenter = Segmenter(VadOptions(**options), max_utterance_ms=max_utterance_ms)
    changes = [segmenter.push(probability) for probability in probabilities]
    return [change for change in changes if change is not None]


def test_silence_is_nothing():
    assert run([QUIET] * 100) == []


def test_speech_begins_where_it_was_first_heard_and_is_reported_when_it_has_lasted():
    assert run([QUIET] * 4 + [LOUD] * 5) == [SpeechBegan(onset=4 * WINDOW, detected=7 * WINDOW)]


def test_speech_ends_where_silence_began_and_is_reported_when_that_has_lasted():
    changes = run([LOUD] * 10 + [QUIET] * 20)
    # 300 ms are not reached before the tenth window of 32 ms.
    assert changes[1:] == [SpeechEnded(end=10 * WINDOW, detected=20 * WINDOW)]


@pytest.mark.parametrize(("silence_ms", "windows"), [(32, 1), (96, 3), (97, 4), (640, 20)])
def test_silence_lasts_as_long_as_asked(silence_ms, windows):
    changes = run([LOUD] * 10 + [QUIET] * 30, silence_ms=silence_ms)
    assert changes[1] == SpeechEnded(end=10 * WINDOW, detected=(10 + windows) * WINDOW)


def test_a_short_noise_is_ignored():
    assert run([LOUD] * 2 + [QUIET] * 20 + [LOUD] * 2 + [QUIET] * 20) == []
    assert run([LOUD], min_speech_ms=0) == [SpeechBegan(onset=0, detected=WINDOW)]


def test_a_dip_that_stays_above_the_release_threshold_does_not_cancel_a_beginning():
    assert run([LOUD, MIDDLE, LOUD]) == [SpeechBegan(onset=0, detected=3 * WINDOW)]


def test_hovering_below_the_threshold_neither_begins_nor_ends_speech():
    assert run([MIDDLE] * 50) == []
    assert len(run([LOUD] * 10 + [MIDDLE] * 50)) == 1


def test_hovering_does_not_interrupt_a_silence_but_speech_does():
    hovering = run([LOUD] * 10 + [QUIET, MIDDLE] * 10)
    assert hovering[1] == SpeechEnded(end=10 * WINDOW, detected=20 * WINDOW)
    spoken = run([LOUD] * 10 + [QUIET] * 8 + [LOUD] + [QUIET] * 20)
    assert spoken[1] == SpeechEnded(end=19 * WINDOW, detected=29 * WINDOW)


def test_a_pause_shorter_than_the_silence_is_part_of_the_utterance():
    assert len(run([LOUD] * 10 + [QUIET] * 9 + [LOUD] * 10)) == 1


def test_speech_without_a_pause_is_ended_and_begins_anew():
    changes = run([LOUD] * 60, max_utterance_ms=960)
    assert changes[0] == SpeechBegan(onset=0, detected=3 * WINDOW)
    assert changes[1] == SpeechEnded(end=30 * WINDOW, detected=30 * WINDOW)
    assert changes[2] == SpeechBegan(onset=30 * WINDOW, detected=33 * WINDOW)
    assert changes[3] == SpeechEnded(end=60 * WINDOW, detected=60 * WINDOW)


def test_flush_ends_speech_where_it_stands_or_where_silence_began():
    segmenter = Segmenter(VadOptions(), max_utterance_ms=60_000)
    assert segmenter.flush() is None
    for _ in range(5):
        segmenter.push(LOUD)
    assert segmenter.flush() == SpeechEnded(end=5 * WINDOW, detected=5 * WINDOW)
    for probability in [LOUD] * 5 + [QUIET] * 2:
        segmenter.push(probability)
    assert segmenter.flush() == SpeechEnded(end=10 * WINDOW, detected=12 * WINDOW)
    assert segmenter.flush() is None


def test_flush_forgets_speech_that_was_only_beginning():
    segmenter = Segmenter(VadOptions(), max_utterance_ms=60_000)
    segmenter.push(LOUD)
    assert segmenter.flush() is None
    assert segmenter.onset is None


def test_a_window_cut_short_counts_for_what_it_has():
    segmenter = Segmenter(VadOptions(), max_utterance_ms=60_000)
    segmenter.push(LOUD, samples=100)
    assert segmenter.position == 100


def test_a_fork_goes_its_own_way():
    segmenter = Segmenter(VadOptions(), max_utterance_ms=60_000)
    twin = segmenter.fork()
    for _ in range(3):
        twin.push(LOUD)
    assert (twin.speaking, segmenter.speaking, segmenter.position) == (True, False, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0.0},
        {"threshold": 1.0},
        {"threshold": math.nan},
        {"min_speech_ms": -1},
        {"min_speech_ms": 2_001},
        {"silence_ms": 31},
        {"silence_ms": 5_001},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InvalidMessageError):
        Segmenter(VadOptions(**options), max_utterance_ms=60_000)


def test_a_threshold_below_the_margin_still_ends_speech():
    assert len(run([LOUD] * 10 + [0.0] * 20, threshold=0.005)) == 2
