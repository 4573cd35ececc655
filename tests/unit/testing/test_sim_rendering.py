from dataclasses import replace

import numpy as np
import pytest
from simulate.cli import world_of

from parley_client.audio.files import read_speech
from parley_testing.rendering import Studio, cut_point, lines, put_between
from parley_testing.scenario import Caller, Pause, ScenarioError, parse_sentence
from parley_testing.scenario_file import read_file
from parley_testing.sounds import LOOPS, SOUNDS, loudness, make
from parley_testing.voices import ESPEAK, RATE, Marks, Spoken, speak_all

WORD = RATE // 4
GAP = RATE // 50
SCENARIOS = world_of("tiny").scenarios


def tones(count: int) -> Spoken:
    """Words of 250 ms, each a tone of its own, 20 ms apart; marked 45 ms too early."""
    samples, marks, position = [], [], 0
    for number in range(count):
        time = np.arange(WORD) / RATE
        marks.append((position, number * (WORD + GAP) - 45 * RATE // 1000))
        samples += [8_000 * np.sin(2 * np.pi * (300 + 50 * number) * time), np.zeros(GAP)]
        position += 2
    return Spoken(np.concatenate(samples[:-1]).astype(np.int16), tuple(marks), ESPEAK.marks)


def test_a_pause_has_its_length_and_its_place():
    sentence = parse_sentence("a b [700] c d [300] e", SOUNDS)
    spoken = tones(5)
    pieces = {insert: np.zeros(insert.ms * 16) for _, insert in sentence.inserts}
    wave, pauses = put_between(spoken, sentence, pieces)
    assert [stop - start for start, stop in pauses] == [700 * 16, 300 * 16]
    assert not wave[pauses[0][0] : pauses[0][1]].any()
    # Between the end of the second word and the beginning of the third.
    assert 2 * WORD + GAP <= pauses[0][0] <= 2 * (WORD + GAP)
    after_first = pauses[1][0] - 700 * 16
    assert 4 * WORD + 3 * GAP <= after_first <= 4 * (WORD + GAP)
    assert len(wave) - 1_000 * 16 == pytest.approx(len(spoken.samples), abs=GAP)


def test_a_word_is_not_changed_by_a_pause_elsewhere():
    sentence = parse_sentence("a b [700] c", SOUNDS)
    spoken = tones(3)
    wave, pauses = put_between(spoken, sentence, {Pause(700): np.zeros(700 * 16)})
    middle = slice(WORD + GAP, 2 * WORD + GAP - 100)
    assert np.allclose(wave[middle] * 32_767, spoken.samples[middle])
    tail = wave[pauses[0][1] :]
    assert np.allclose(tail[-WORD // 2 : -200] * 32_767, spoken.samples[-WORD // 2 : -200])


def test_a_word_without_a_mark_is_found_between_its_neighbours():
    spoken = tones(4)
    marks = tuple(mark for number, mark in enumerate(spoken.words) if number != 2)
    sentence = parse_sentence("a b c d", SOUNDS)
    at = cut_point(Spoken(spoken.samples, marks, spoken.marks), sentence, 2)
    assert 2 * WORD + GAP <= at <= 2 * (WORD + GAP)


def test_marks_that_come_late_are_looked_for_before_them():
    spoken = tones(3)
    late = tuple((position, at + 90 * RATE // 1000) for position, at in spoken.words)
    sentence = parse_sentence("a b c", SOUNDS)
    for marks in (Marks(early_ms=-40, search_ms=40), Marks(early_ms=-80, search_ms=60)):
        at = cut_point(Spoken(spoken.samples, late, marks), sentence, 1)
        assert WORD <= at <= WORD + GAP


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenarios")
    path = folder / "call.toml"
    recording = "../../../tests/data/conversation/02-weather.wav"
    path.write_text(
        f"""
        title = "A call"
        caller = {{ level_db = -26 }}
        [[exchange]]
        say = "set a timer for ten minutes"
        [[exchange]]
        say = "set a timer for [um] [700] ten minutes"
        [[exchange]]
        sound = "cough"
        [[exchange]]
        quiet_ms = 500
        [[exchange]]
        file = "{(SCENARIOS / recording).resolve()}"
        cuts = [[700, 400]]
        [[exchange]]
        file = "{(SCENARIOS / recording).resolve()}"
        part = [500, 1000]
        cuts = [[700, 400]]
        [[exchange]]
        file = "{(SCENARIOS / recording).resolve()}"
        cuts = [[99000, 400]]
        """
    )
    scenario = read_file(path)[0]
    return Studio(speak_all(lines([scenario]), ESPEAK)), scenario


def test_a_hesitation_only_makes_a_sentence_longer(studio):
    studio, scenario = studio
    fluent, hesitant, *_ = (studio.clip(one, scenario.caller) for one in scenario.exchanges[:2])
    assert fluent.pauses == ()
    ((start, stop),) = hesitant.pauses
    assert stop - start == 700 * 16
    assert not hesitant.samples[start:stop].any()
    assert len(hesitant.samples) > len(fluent.samples) + 700 * 16
    assert hesitant.first < start
    assert hesitant.last > stop


def test_everybody_speaks_at_the_same_level(studio):
    studio, scenario = studio
    for exchange in scenario.exchanges[:3]:
        clip = studio.clip(exchange, Caller(level_db=-26))
        assert 20 * np.log10(loudness(clip.samples / 32_768)) == pytest.approx(-26, abs=0.5)


def test_silence_makes_no_sound(studio):
    studio, scenario = studio
    assert studio.clip(scenario.exchanges[3], scenario.caller) is None


def test_a_recording_can_be_cut(studio):
    studio, scenario = studio
    exchange = scenario.exchanges[4]
    clip = studio.clip(exchange, scenario.caller)
    assert clip.pauses == ((700 * 16, 1_100 * 16),)
    assert len(clip.samples) == len(read_speech(exchange.file)) + 400 * 16


def test_a_part_of_a_recording_can_be_cut(studio):
    studio, scenario = studio
    clip = studio.clip(scenario.exchanges[5], scenario.caller)
    assert clip.pauses == ((200 * 16, 600 * 16),)
    assert len(clip.samples) == (500 + 400) * 16


def test_a_part_outside_of_the_recording_is_refused(studio):
    studio, scenario = studio
    exchange = replace(scenario.exchanges[5], part=(90_000, 91_000), cuts=())
    with pytest.raises(ScenarioError, match="is over before its part begins"):
        studio.clip(exchange, scenario.caller)


def test_a_cut_outside_of_the_recording_is_refused(studio):
    studio, scenario = studio
    with pytest.raises(ScenarioError, match=r"exchange 7: .*no place for a pause at 99000 ms"):
        studio.check(scenario)


def test_an_unknown_voice_is_refused(tmp_path):
    path = tmp_path / "call.toml"
    path.write_text('title = "A call"\n[[exchange]]\nsay = "hello"\nvoice = "missing"\n')
    with pytest.raises(ScenarioError, match="no voice 'missing'"):
        speak_all(lines([read_file(path)[0]]), ESPEAK)


def test_sounds_are_always_the_same_and_long_enough():
    for name in SOUNDS - {"babble"}:
        wave = make(name)
        assert np.array_equal(wave, make(name))
        assert loudness(wave) == pytest.approx(1.0)
        assert len(wave) >= RATE // 10
        if name in LOOPS:
            assert len(wave) >= 2 * RATE
