import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.errors import InvalidMessageError
from parley.protocol import VadOptions
from parley.vad.segmenter import OnsetHeard, OnsetLost, SpeechBegan, SpeechEnded, SpeechSegmenter

WINDOW = 512
SPEECH = SpeechBegan | SpeechEnded
LOUD, MIDDLE, QUIET = 0.9, 0.4, 0.1  # the default thresholds are 0.5 and 0.35


def run_all(probabilities, *, max_utterance_ms=60_000, **options):
    """All changes that a default segmenter reports."""
    segmenter = SpeechSegmenter(VadOptions(**options), max_utterance_ms=max_utterance_ms)
    return [change for probability in probabilities for change in segmenter.push(probability)]


def run(probabilities, **options):
    """When speech begins and ends, without the onsets."""
    changes = run_all(probabilities, **options)
    return [change for change in changes if isinstance(change, SPEECH)]


def test_silence_is_nothing():
    assert run([QUIET] * 100) == []


def test_speech_begins_at_its_onset_and_is_reported_after_its_minimum():
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


def test_dip_above_the_release_threshold_keeps_the_onset():
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
    segmenter = SpeechSegmenter(VadOptions(), max_utterance_ms=60_000)
    assert segmenter.flush() == []
    for _ in range(5):
        segmenter.push(LOUD)
    assert segmenter.flush() == [SpeechEnded(end=5 * WINDOW, detected=5 * WINDOW)]
    for probability in [LOUD] * 5 + [QUIET] * 2:
        segmenter.push(probability)
    assert segmenter.flush() == [SpeechEnded(end=10 * WINDOW, detected=12 * WINDOW)]
    assert segmenter.flush() == []


def test_flush_forgets_speech_that_was_only_beginning():
    segmenter = SpeechSegmenter(VadOptions(), max_utterance_ms=60_000)
    segmenter.push(LOUD)
    assert segmenter.flush() == [OnsetLost()]
    assert segmenter.onset is None
    assert segmenter.flush() == []


def test_onset_is_reported_with_the_first_window_and_confirmed_or_lost():
    segmenter = SpeechSegmenter(VadOptions(), max_utterance_ms=60_000)
    steps = [segmenter.push(p) for p in (QUIET, LOUD, QUIET, LOUD, MIDDLE, LOUD, LOUD)]
    assert steps == [
        [],
        [OnsetHeard(WINDOW)],
        [OnsetLost()],
        [OnsetHeard(3 * WINDOW)],
        [],
        [SpeechBegan(onset=3 * WINDOW, detected=6 * WINDOW)],
        [],
    ]


def test_onset_that_is_speech_at_once_is_reported_with_it():
    assert run_all([LOUD], min_speech_ms=0) == [OnsetHeard(0), SpeechBegan(onset=0, detected=WINDOW)]


def test_speech_that_begins_anew_after_a_cut_has_an_onset_too():
    changes = run_all([LOUD] * 31, max_utterance_ms=960)
    assert changes[2:] == [
        SpeechEnded(end=30 * WINDOW, detected=30 * WINDOW),
        OnsetHeard(30 * WINDOW),
    ]


FAINT = 0.2


def test_faint_onset_is_reported_early_and_keeps_the_begin_of_speech():
    script = [QUIET, FAINT, QUIET, QUIET, LOUD, LOUD, LOUD]
    assert run_all(script, onset_threshold=0.15) == [
        OnsetHeard(WINDOW),
        SpeechBegan(onset=4 * WINDOW, detected=7 * WINDOW),
    ]
    assert run(script, onset_threshold=0.15) == run(script)


def test_lasting_faint_sound_is_reported_once():
    segmenter = SpeechSegmenter(VadOptions(onset_threshold=0.15), max_utterance_ms=60_000)
    found = [segmenter.push(FAINT) for _ in range(20)]
    assert found == [[OnsetHeard(0)], [], [], [], [OnsetLost()], *([[]] * 15)]
    assert segmenter.push(LOUD) == [OnsetHeard(20 * WINDOW)]
    assert segmenter.push(QUIET) == [OnsetLost()]
    assert segmenter.push(FAINT) == [OnsetHeard(22 * WINDOW)]


@given(
    st.lists(st.one_of(st.floats(0, 1), st.sampled_from([LOUD, MIDDLE, QUIET]), st.none()), max_size=200),
    st.sampled_from([0, 32, 96, 250]),
    st.sampled_from([32, 96, 200]),
    st.sampled_from([200, 1_000, 60_000]),
    st.sampled_from([None, 0.05, 0.2, 0.45]),
)
def test_whatever_is_heard_every_onset_becomes_speech_or_is_lost(script, min_speech, silence, longest, faint):
    """``None`` stands for a flush."""
    options = VadOptions(min_speech_ms=min_speech, silence_ms=silence, onset_threshold=faint)
    segmenter = SpeechSegmenter(options, max_utterance_ms=longest)
    plain = SpeechSegmenter(
        VadOptions(min_speech_ms=min_speech, silence_ms=silence), max_utterance_ms=longest
    )
    follows = {
        None: OnsetHeard,
        OnsetHeard: (OnsetLost, SpeechBegan),
        OnsetLost: OnsetHeard,
        SpeechBegan: SpeechEnded,
        SpeechEnded: OnsetHeard,
    }
    last, onset = None, None
    for probability in [*script, None]:
        changes, expected = (
            one.flush() if probability is None else one.push(probability) for one in (segmenter, plain)
        )
        # Where onsets are looked for does not move speech.
        assert [c for c in changes if isinstance(c, SPEECH)] == [c for c in expected if isinstance(c, SPEECH)]
        for change in changes:
            assert isinstance(change, follows[last])
            last = type(change)
            if isinstance(change, OnsetHeard):
                assert probability >= (faint or options.threshold)
                onset = change.onset
                assert onset == segmenter.position - WINDOW
            elif isinstance(change, SpeechBegan):
                assert change.onset == onset if faint is None else onset <= change.onset
        if probability is None:
            assert last in (None, OnsetLost, SpeechEnded)
        elif probability >= options.threshold:
            assert last in (OnsetHeard, SpeechBegan, SpeechEnded)
        if faint is None:
            assert (segmenter.onset is None) == (last not in (OnsetHeard, SpeechBegan))


def test_a_window_cut_short_counts_for_what_it_has():
    segmenter = SpeechSegmenter(VadOptions(), max_utterance_ms=60_000)
    segmenter.push(LOUD, samples=100)
    assert segmenter.position == 100


def test_a_fork_goes_its_own_way():
    segmenter = SpeechSegmenter(VadOptions(), max_utterance_ms=60_000)
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
        {"onset_threshold": 0.0},
        {"onset_threshold": 0.51},
        {"onset_threshold": math.nan},
        {"min_speech_ms": -1},
        {"min_speech_ms": 2_001},
        {"silence_ms": 31},
        {"silence_ms": 5_001},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InvalidMessageError):
        SpeechSegmenter(VadOptions(**options), max_utterance_ms=60_000)


def test_a_threshold_below_the_margin_still_ends_speech():
    assert len(run([LOUD] * 10 + [0.0] * 20, threshold=0.005)) == 2
