"""How much of a response's audio was played."""

import pytest

from parley.played_time import PlayedTime


def test_playing_stands_still_in_pauses_and_reports_say_less():
    played = PlayedTime()
    played.add(1_000, 0.0)
    assert played.played_ms(0.4) == pytest.approx(400)
    played.pause(0.5)
    assert played.played_ms(3.0) == pytest.approx(500)
    played.add(500, 3.0)
    played.resume(4.5)
    assert played.played_ms(5.0) == pytest.approx(1_000)
    assert played.played_ms(60.0) == pytest.approx(1_500)
    played.report(200, 60.0)
    assert played.played_ms(60.1) == pytest.approx(300)
    assert played.played_ms(70.0) == pytest.approx(450)
    played.report(100, 71.0)  # goes back
    assert played.played_ms(71.0) == pytest.approx(450)


def test_restored_audio_is_played_from_where_it_was():
    played = PlayedTime()
    played.restore(2_000, 500, 10.0)
    assert (played.played_ms(10.0), played.ahead_ms(10.0)) == (500, 1_500)
    played.add(1_000, 10.5)
    assert played.played_ms(10.5) == pytest.approx(1_000)
    assert played.played_ms(60.0) == played.length_ms == 3_000
