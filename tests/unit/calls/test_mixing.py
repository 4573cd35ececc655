"""The audio of a call as the user had it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from parley.calls.mixing import RATE, CallMixer
from parley.protocol import Audio

BEGAN = 50.0
CHUNK = RATE // 10


def chunk(value: int, samples: int = CHUNK) -> np.ndarray:
    return np.full(samples, value, np.int16)


def spoken(offset_ms: int, samples: int, text: str = "", *, response: str = "r1", rate: int = RATE) -> Audio:
    return Audio(
        turn=1, response_id=response, offset_ms=offset_ms, sample_rate=rate, samples=samples, text=text
    )


class Recorder:
    """A mixer, and all that it has given."""

    def __init__(self, sent_ms: int = 0) -> None:
        self.mixer = CallMixer(BEGAN, sent_ms)
        self.raw = b""

    def until(self, second: float) -> None:
        self.raw += b"".join(self.mixer.take(BEGAN + second))

    def hears(self, audio, second: float) -> None:
        self.raw += b"".join(self.mixer.add_user(audio, BEGAN + second))

    def says(self, second: float, event: Audio, value: int) -> None:
        self.until(second)
        self.mixer.add_agent(event, chunk(value, event.samples))

    def finish(self, second: float) -> tuple[np.ndarray, np.ndarray]:
        self.raw += b"".join(self.mixer.finish(BEGAN + second))
        sides = np.frombuffer(self.raw, np.int16).reshape(-1, 2)
        return sides[:, 0], sides[:, 1]


def spans(side: np.ndarray) -> list[tuple[float, float, int]]:
    """(begin, end, value) of what is no silence, in seconds."""
    borders = [0, *(np.flatnonzero(np.diff(side.astype(np.int32))) + 1), len(side)]
    found = [(begin / RATE, end / RATE, int(side[begin])) for begin, end in pairwise(borders)]
    return [one for one in found if one[2]]


def test_positions_of_a_call_that_goes_on_are_those_of_its_recording():
    call = Recorder(sent_ms=300_000)
    for number in range(1, 11):
        call.hears(chunk(number), number / 10)
    assert [call.mixer.place(at_ms) for at_ms in (299_000, 300_000, 300_500)] == [0, 0, 500]


def test_user_whose_audio_comes_in_time_is_heard_without_gaps():
    call = Recorder()
    for number in range(1, 81):
        call.hears(chunk(number), number / 10 + (0.05 if number % 3 else 0.0))
    user, agent = call.finish(8.1)
    assert list(user[: 80 * CHUNK : CHUNK]) == list(range(1, 81))
    assert not agent.any()


def test_audio_that_was_not_sent_is_silence():
    call = Recorder()
    call.hears(chunk(1), 0.1)
    call.hears(chunk(2), 12.0)
    user, _ = call.finish(12.5)
    assert spans(user) == [(0.0, 0.1, 1), (pytest.approx(11.9), pytest.approx(12.0), 2)]
    assert call.mixer.place(0) == 0
    assert call.mixer.place(150) == pytest.approx(11_950, abs=1)


def test_muted_audio_is_left_out_and_keeps_its_time():
    call = Recorder()
    call.hears(chunk(1), 0.1)
    call.hears(CHUNK, 0.2)
    call.hears(chunk(3), 0.3)
    user, _ = call.finish(0.3)
    assert spans(user) == [(0.0, 0.1, 1), (0.2, 0.3, 3)]


def test_user_faster_than_time_sets_the_clock_forward():
    call = Recorder()
    for number in range(1, 301):
        call.hears(chunk(number), 0.0)
    user, _ = call.finish(0.0)
    assert list(user[::CHUNK]) == list(range(1, 301))


def test_agent_is_played_behind_what_was_sent_before():
    call = Recorder()
    call.says(1.0, spoken(0, RATE, "Good"), 5)
    call.says(1.2, spoken(1000, RATE, "evening."), 6)
    _, agent = call.finish(4.0)
    assert spans(agent) == [(1.0, 2.0, 5), (2.0, 3.0, 6)]
    assert call.mixer.words() == [(1000, "r1", "Good"), (2000, "r1", "evening.")]


def test_interrupted_answer_ends_where_it_was_played():
    call = Recorder()
    call.says(1.0, spoken(0, RATE, "Good"), 5)
    call.says(1.1, spoken(1000, RATE, "evening."), 6)
    call.until(2.4)
    call.mixer.interrupt("r1", 700)
    _, agent = call.finish(9.0)
    assert spans(agent) == [(1.0, 1.7, 5)]
    assert [text for _, _, text in call.mixer.words()] == ["Good"]


def test_paused_answer_goes_on_where_it_stood():
    call = Recorder()
    call.says(1.0, spoken(0, RATE), 5)
    call.until(1.5)
    call.mixer.pause(paused=True)
    call.until(2.5)
    call.mixer.pause(paused=False)
    _, agent = call.finish(4.0)
    assert spans(agent) == [(1.0, 1.5, 5), (2.5, 3.0, 5)]


def test_answer_at_another_rate_has_its_length():
    call = Recorder()
    call.until(1.0)
    for number in range(10):
        call.mixer.add_agent(spoken(number * 100, 2400, rate=24_000), chunk(9000, 2400))
    call.mixer.end_response()
    _, agent = call.finish(3.0)
    assert np.count_nonzero(np.abs(agent) > 4500) == pytest.approx(RATE, abs=20)


def test_long_silence_is_given_in_pieces_of_bounded_size():
    call = Recorder()
    pieces = list(call.mixer.take(BEGAN + 3600))
    assert max(map(len, pieces)) <= 4 * RATE * 4
    user, _ = call.finish(3600)
    assert len(user) + sum(map(len, pieces)) // 4 == 3600 * RATE
