"""The loudspeaker's clock and the recording of what was heard."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from parley_client import AgentAudio
from parley_client.audio.playout import PlayoutClock
from parley_client.audio.recording import CallRecording

RATE = 1000  # one sample is one millisecond


def piece(count, response="r", value=1, rate=RATE):
    return AgentAudio(1, response, 0, rate, np.full(count, value, np.int16), "")


def heard_by(clock_arguments=None):
    heard = []
    return heard, PlayoutClock(heard.append, **(clock_arguments or {}))


def test_pieces_that_arrive_at_once_are_heard_one_after_the_other():
    heard, clock = heard_by()
    clock.push(piece(100, value=1), 10.0)
    clock.push(piece(50, value=2), 10.0)
    assert clock.queued_s(10.05) == pytest.approx(0.1)
    clock.advance(10.12)
    assert sum(len(part.samples) for part in heard) == 120
    assert clock.played_ms("r") == pytest.approx(120)
    assert clock.playing(10.12) == "r"
    assert clock.playing(10.16) is None
    assert clock.last_heard_s == pytest.approx(10.15)
    assert np.concatenate([part.samples for part in heard]).tolist() == [1] * 100 + [2] * 50


def test_a_late_piece_is_heard_on_arrival_and_counts_as_a_gap():
    heard, clock = heard_by()
    clock.push(piece(100), 0.0)
    clock.push(piece(100), 0.3)
    clock.advance(1.0)
    assert [part.at_s for part in heard] == pytest.approx([0.0, 0.3])
    assert clock.underruns == 1


def test_an_interruption_silences_the_response_for_good():
    heard, clock = heard_by()
    clock.push(piece(1000), 0.0)
    assert clock.interrupt("r", 0.25) == pytest.approx(0.75)
    clock.push(piece(100), 0.3)
    clock.push(piece(10, response="next"), 0.4)
    clock.advance(2.0)
    assert clock.played_ms("r") == pytest.approx(250)
    assert [part.response_id for part in heard] == ["r", "next"]
    assert heard[-1].at_s == pytest.approx(0.4)


def test_an_interruption_lets_another_response_move_up():
    _, clock = heard_by()
    clock.push(piece(1000, "a"), 0.0)
    clock.push(piece(100, "b"), 0.0)
    clock.interrupt("a", 0.5)
    assert clock.queued_s(0.5) == pytest.approx(0.1)
    clock.interrupt("unknown", 0.55)
    assert clock.queued_s(0.55) == pytest.approx(0.05)
    clock.advance(1.0)
    assert clock.played_ms("b") == pytest.approx(100)


def test_a_pause_keeps_what_was_not_heard_and_goes_on_exactly_there():
    heard, clock = heard_by()
    clock.push(AgentAudio(1, "r", 0, RATE, np.arange(100, dtype=np.int16), ""), 1.0)
    clock.pause("r", 1.03)
    clock.push(AgentAudio(1, "r", 100, RATE, np.arange(100, 150, dtype=np.int16), ""), 1.5)
    clock.advance(2.0)
    assert clock.paused
    assert (clock.playing(2.0), clock.played_ms("r")) == (None, pytest.approx(30))
    assert clock.queued_s(2.0) == pytest.approx(0.12)
    clock.resume("r", 3.0)
    assert (clock.paused, clock.playing(3.0)) == (False, "r")
    assert clock.queued_s(3.0) == pytest.approx(0.12)
    clock.advance(4.0)
    assert np.concatenate([part.samples for part in heard]).tolist() == list(range(150))
    assert [part.at_s for part in heard] == pytest.approx([1.0, 3.0, 3.07])
    assert clock.underruns == 0


def test_pauses_do_not_add_up_and_an_unknown_one_does_not_end():
    _, clock = heard_by()
    clock.resume("r", 0.5)  # not paused at all
    clock.push(piece(100), 1.0)
    clock.pause("r", 1.01)
    clock.pause("r", 1.5)
    clock.resume("other", 1.6)
    clock.interrupt("other", 1.7)
    assert clock.paused
    clock.resume("r", 2.0)
    clock.advance(2.05)
    assert clock.played_ms("r") == pytest.approx(60)


def test_interruption_while_paused_drops_the_response_and_plays_the_next():
    heard, clock = heard_by()
    clock.push(piece(1000), 0.0)
    clock.pause("r", 0.25)
    clock.push(piece(100, "next"), 0.3)
    assert clock.interrupt("r", 0.5) == pytest.approx(0.75)
    assert clock.last_heard_s == pytest.approx(0.25)
    clock.pause("r", 0.55)  # too late to hold anything up
    clock.advance(1.0)
    assert [(part.response_id, part.at_s) for part in heard] == [
        ("r", pytest.approx(0.0)),
        ("next", pytest.approx(0.5)),
        ("next", pytest.approx(0.55)),
    ]
    assert clock.played_ms("next") == pytest.approx(100)


def test_a_pause_while_nothing_is_queued_holds_what_comes_then():
    heard, clock = heard_by()
    clock.push(piece(100), 0.0)
    clock.pause("r", 0.5)
    clock.advance(0.6)
    clock.push(piece(50), 0.8)
    assert clock.queued_s(0.9) == pytest.approx(0.05)
    assert clock.playing(0.9) is None
    clock.resume("r", 1.0)
    clock.push(piece(50), 1.01)
    clock.advance(2.0)
    assert [part.at_s for part in heard] == pytest.approx([0.0, 1.0, 1.01, 1.05])
    assert clock.underruns == 0


def test_a_gap_that_the_pause_made_is_none_of_the_servers():
    _, clock = heard_by()
    clock.push(piece(100), 0.0)
    clock.pause("r", 0.5)
    clock.resume("r", 0.6)
    clock.push(piece(100), 0.7)
    assert clock.underruns == 0
    clock.push(piece(100), 0.9)
    assert clock.underruns == 1


def test_audio_without_room_is_dropped():
    _, clock = heard_by({"limit_s": 1.0})
    clock.push(piece(900), 0.0)
    clock.push(piece(200), 0.0)
    assert clock.queued_s(0.0) == pytest.approx(0.9)
    clock.push(piece(200), 0.5)
    assert clock.queued_s(0.5) == pytest.approx(0.6)


def test_the_recording_is_aligned_as_heard(tmp_path):
    recording = CallRecording(began_s=100.0)
    clock = PlayoutClock(recording.add_agent)
    for _ in range(10):
        recording.add_user(np.full(1600, 500, np.int16))  # one second
    clock.push(piece(11_025, value=900, rate=22_050), 100.25)
    for step in range(1, 40):
        clock.advance(100.25 + step * 0.0125)
    clock.push(piece(22_050, response="late", value=700, rate=22_050), 100.9)
    clock.interrupt("late", 101.0)
    recording.write(tmp_path / "a" / "call.wav")
    stereo, rate = soundfile.read(tmp_path / "a" / "call.wav", dtype="int16")
    assert rate == 22_050
    user, agent = stereo[:, 0], stereo[:, 1]
    assert abs(len(stereo) - rate) <= 2
    assert np.abs(user[200:-200] - 500).max() <= 2
    edges = np.flatnonzero(np.diff((agent != 0).astype(int))) / rate
    assert edges == pytest.approx([0.25, 0.75, 0.9, 1.0], abs=3 / rate)


def test_the_recording_is_silent_while_paused():
    recording = CallRecording(began_s=0.0)
    clock = PlayoutClock(recording.add_agent)
    clock.push(piece(11_025, value=900, rate=22_050), 0.1)
    for step in range(1, 200):
        now = 0.1 + step * 0.01
        if step == 20:
            clock.pause("r", now)
        if step == 100:
            clock.resume("r", now)
        clock.advance(now)
    _, agent = recording.tracks(22_050)
    edges = np.flatnonzero(np.diff((agent != 0).astype(int))) / 22_050
    assert edges == pytest.approx([0.1, 0.3, 1.1, 1.4], abs=3 / 22_050)


def test_an_empty_recording_can_be_written(tmp_path):
    CallRecording(0.0).write(tmp_path / "call.wav")
    assert soundfile.info(tmp_path / "call.wav").channels == 2


def test_recordings_are_bounded():
    recording = CallRecording(0.0, max_s=1.0)
    for _ in range(30):
        recording.add_user(np.zeros(1600, np.int16))
    user, _ = recording.tracks(16_000)
    assert len(user) == 16_000
