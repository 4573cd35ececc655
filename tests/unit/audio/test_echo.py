"""The agent's own voice in the microphone."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from parley.audio.echo import EchoDetector, likeness

CLIPS = "tests/data/conversation"
RATE = 16_000


def clip(root, name):
    return soundfile.read(root / CLIPS / f"{name}.wav", dtype="int16")[0]


@pytest.fixture
def story(pytestconfig):
    return clip(pytestconfig.rootpath, "04-timer")


@pytest.fixture
def other(pytestconfig):
    return clip(pytestconfig.rootpath, "08-time")


def quieter(samples, db, noise=8.0):
    copy = samples * 10 ** (-db / 20) + np.random.default_rng(1).normal(0, noise, len(samples))
    return np.clip(copy, -32_768, 32_767).astype(np.int16)


@pytest.mark.parametrize("db", [0, 20, 30])
@pytest.mark.parametrize("length", [0.5, 1.0])
def test_a_weak_copy_is_recognised_at_any_delay(story, db, length):
    for start in (4_000, 9_000, 15_000):
        heard = quieter(story[start : start + round(length * RATE)], db)
        assert likeness(heard, story) > 0.7


def test_another_voice_is_not(story, other):
    for start in range(4_000, 20_000, 4_000):
        assert likeness(other[start : start + RATE], story) < 0.32


def test_speech_over_an_echo_is_not_the_echo(story, other):
    echo = quieter(story[4_000 : 4_000 + RATE], 25)
    assert likeness(other[6_000 : 6_000 + RATE] + echo, story) < 0.32


@pytest.mark.parametrize(
    ("heard", "played"),
    [
        (np.zeros(0, np.int16), np.ones(100, np.int16)),
        (np.zeros(50, np.int16), np.ones(100, np.int16)),
        (np.ones(100, np.int16), np.ones(50, np.int16)),
        (np.arange(50).astype(np.int16), np.zeros(100, np.int16)),
    ],
)
def test_silence_has_no_echo(heard, played):
    assert likeness(heard, played) == 0.0


@pytest.mark.parametrize(("before_ms", "after_ms"), [(0, 150), (200, 0), (150, 150)])
def test_an_echo_is_recognised_with_the_silence_around_it(story, other, before_ms, after_ms):
    sound = story[6_000:14_000]
    detector = EchoDetector(RATE)
    detector.sent(sound, RATE)

    def heard(speech):
        return quieter(np.pad(speech, (before_ms * 16, after_ms * 16)), 20)

    assert detector.recognises(heard(sound))
    assert not detector.recognises(heard(other[6_000:14_000]))


def loudest(samples):
    return int(np.convolve(samples.astype(float) ** 2, np.ones(1_600), "same").argmax())


@pytest.mark.parametrize("length_ms", [150, 250])
def test_a_little_sound_between_silences_is_recognised(story, other, length_ms):
    """The agent falls silent at the first sound of its echo: before and after it other things were played."""
    length = length_ms * 16
    sound = story[loudest(story) :][:length] // 3
    around = np.tile(other[loudest(other) - 2_000 :][:4_000], 3)
    detector = EchoDetector(RATE)
    detector.sent(np.concatenate([around, sound, around]), RATE)

    def heard(speech):
        return quieter(np.pad(speech, (350 * 16, 350 * 16)), 20)

    assert detector.recognises(heard(sound))
    for start in range(14_000, 20_000, 1_000):
        assert not detector.recognises(heard(other[start : start + length]))
    assert not detector.recognises(np.zeros(RATE, np.int16))


def test_the_detector_remembers_what_was_sent_last(story, other):
    detector = EchoDetector(RATE, memory_s=2.0)
    assert not detector.recognises(story[:RATE])
    for start in range(0, len(story), 1_600):
        detector.sent(story[start : start + 1_600], RATE)
    end = len(story)
    assert detector.recognises(quieter(story[end - 20_000 : end - 4_000], 20))
    assert not detector.recognises(other[6_000 : 6_000 + RATE])
    assert not detector.recognises(quieter(story[end - 6_000 : end - 4_500], 20)), "too short to tell"
    for start in range(0, len(other), 1_600):
        detector.sent(other[start : start + 1_600], RATE)
    assert not detector.recognises(quieter(story[end - 20_000 : end - 4_000], 20))
