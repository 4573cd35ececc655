"""What a call learns of its caller's pauses."""

from __future__ import annotations

import pytest

from parley.turns.caller_pauses import MOST_EXTRA_MS, CallerPauses
from parley.turns.endpointing import CommitTurn, EndpointingPolicy, WaitForMore
from parley.turns.settings import PRESETS

END = 20_000


def hear(pauses, length_ms, needed_ms=240, *, words=True):
    """A pause that was judged, and speech behind it."""
    pauses.on_speech_stopped(1_000)
    pauses.on_judged(needed_ms)
    pauses.on_speech_started(1_000 + length_ms)
    if words:
        pauses.on_words()
    return pauses.extra_ms


@pytest.mark.parametrize(
    ("lengths_ms", "extra_ms"),
    [
        ([END], 0),
        ([200, 240], 0),
        ([390], 100),
        ([390, 340], 100),  # within what is waited for now
        ([390, 490], 200),
        ([390, END, 200], 90),
        ([840], MOST_EXTRA_MS),
        ([790, 1_000], MOST_EXTRA_MS),
        ([841], 0),  # there may have been an answer
    ],
)
def test_extra_follows_pauses_that_were_longer_and_shrinks_with_ends(lengths_ms, extra_ms):
    pauses = CallerPauses()
    for length_ms in lengths_ms:
        hear(pauses, length_ms)
    assert pauses.extra_ms == extra_ms


def test_extra_of_an_earlier_part_of_the_call_is_kept():
    assert hear(CallerPauses(100), 300) == 100


def test_noise_behind_a_pause_teaches_nothing():
    assert hear(CallerPauses(), 340, words=False) == 0


def test_pause_that_was_not_judged_teaches_nothing():
    pauses = CallerPauses()
    pauses.on_speech_started(0)
    pauses.on_speech_stopped(1_000)
    pauses.on_speech_started(1_900)
    pauses.on_words()
    assert pauses.extra_ms == 0


def test_pause_whose_words_are_being_read_is_not_judged_yet():
    pauses = CallerPauses()
    policy = EndpointingPolicy(PRESETS["normal"], "en", scored=False, read=True, pauses=pauses)
    policy.on_speech_started(0)
    pauses.on_speech_stopped(1_000)
    policy.on_speech_stopped(1, 1.2)
    policy.on_transcript(1, "what time is it", 1.2)
    policy.on_speech_started(1.6)
    pauses.on_speech_started(1_600)
    pauses.on_words()
    assert pauses.extra_ms == 0


@pytest.mark.parametrize(("extra_ms", "needed_ms"), [(0, 2_000), (300, 2_300)])
def test_policy_waits_for_the_extra_up_to_its_limit(extra_ms, needed_ms):
    policy = EndpointingPolicy(PRESETS["normal"], "en", scored=False, pauses=CallerPauses(extra_ms))
    policy.on_speech_started(9)
    policy.on_speech_stopped(10, 10.2)
    (wait,) = policy.on_transcript(1, "set a timer for", 10.2)
    assert isinstance(wait, WaitForMore)
    assert wait.decision.needed_ms == needed_ms
    assert policy.tick(10 + needed_ms / 1_000 - 0.01) == []
    (commit,) = policy.tick(13)
    assert isinstance(commit, CommitTurn)
    assert commit.decision.reason == "waited"
