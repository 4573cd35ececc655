"""The schedule of a microphone."""

import pytest
from load.microphone import Microphone
from load.recordings import Recording

# 50 ms of silence, 100 ms of sound, 10 ms of silence.
HELLO = Recording("hello", bytes(1_600) + b"\1\2" * 1_600 + bytes(320), 800, 2_400)


def test_silence_is_sent_at_the_pace_of_time():
    microphone = Microphone(20, began_s=5.0)
    for number in range(1, 4):
        assert microphone.due_s == pytest.approx(5.0 + 0.02 * number)
        assert microphone.next_chunk(microphone.due_s) == bytes(640)
    assert microphone.worst_late_s == 0


@pytest.mark.parametrize("chunk_ms", [20, 100])
def test_a_recording_is_sent_whole_and_ends_where_its_sound_does(chunk_ms):
    microphone = Microphone(chunk_ms, began_s=0.0)
    microphone.next_chunk(microphone.due_s)
    spoken = microphone.say(HELLO)
    assert spoken.began_s == pytest.approx(chunk_ms / 1000 + 0.05)
    assert spoken.ended_s == pytest.approx(chunk_ms / 1000 + 0.15)
    chunks = [microphone.next_chunk(microphone.due_s) for _ in range(200 // chunk_ms)]
    assert {len(chunk) for chunk in chunks} == {32 * chunk_ms}
    sent = b"".join(chunks)
    assert sent.startswith(HELLO.pcm)
    assert not any(sent[len(HELLO.pcm) :])


def test_a_chunk_that_is_late_makes_no_later_one_late():
    microphone = Microphone(20, began_s=0.0)
    microphone.next_chunk(0.15)
    assert microphone.worst_late_s == pytest.approx(0.13)
    assert microphone.due_s == pytest.approx(0.04)
    microphone.next_chunk(0.15)
    assert microphone.worst_late_s == pytest.approx(0.13)
