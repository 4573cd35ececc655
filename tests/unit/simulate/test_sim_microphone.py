import asyncio

import numpy as np
import pytest
from simulate.echo import EchoPath
from simulate.microphone import Microphone, Mixer
from simulate.rendering import Clip
from simulate.scenario import Echo

from parley_client.audio.playout import Heard

CHUNK = 512


def recorded(mixer: Mixer, chunks: int) -> np.ndarray:
    return np.concatenate([mixer.take() for _ in range(chunks)])


def clip(length: int, level: int = 5_000, first: int = 0) -> Clip:
    samples = np.zeros(length, np.int16)
    samples[first:] = level
    return Clip(samples, first, length, ((first + 10, first + 20),))


def test_a_clip_begins_with_the_chunk_that_is_being_recorded():
    mixer = Mixer()
    recorded(mixer, 3)
    placed = mixer.place(clip(1_000, first=100))
    sound = recorded(mixer, 3)
    assert placed.began_s == (3 * CHUNK + 100) / 16_000
    assert placed.ended_s == (3 * CHUNK + 1_000) / 16_000
    assert placed.pauses == (((3 * CHUNK + 110) / 16_000, (3 * CHUNK + 120) / 16_000),)
    assert abs(sound[:100]).max() < 100
    assert sound[100:1_000].min() > 4_900
    assert abs(sound[1_000:]).max() < 100


def test_a_room_is_never_quite_silent_and_always_the_same():
    sound = recorded(Mixer(seed=3), 10)
    assert 4 < sound.std() < 16
    assert np.array_equal(sound, recorded(Mixer(seed=3), 10))
    assert not np.array_equal(sound, recorded(Mixer(seed=4), 10))


def test_clips_sound_at_the_same_time():
    mixer = Mixer()
    mixer.place(clip(2 * CHUNK, 3_000))
    first = mixer.take()
    mixer.place(clip(2 * CHUNK, 4_000))
    both, second = mixer.take(), mixer.take()
    assert abs(int(first.mean()) - 3_000) < 5
    assert abs(int(both.mean()) - 7_000) < 5
    assert abs(int(second.mean()) - 4_000) < 5


def test_what_is_too_loud_is_clipped():
    mixer = Mixer()
    for _ in range(3):
        mixer.place(clip(CHUNK, 20_000))
    assert mixer.take().max() == 32_767


def test_a_background_goes_on():
    mixer = Mixer()
    mixer.set_background(np.full(100, 1_000.0))
    sound = recorded(mixer, 8)
    assert abs(sound[CHUNK * 2 :].mean() - 1_000) < 5
    mixer.set_background(None)
    assert abs(recorded(mixer, 2)).max() < 100


def test_the_echo_comes_later_and_softer():
    mixer = Mixer()
    path = EchoPath(Echo(delay_ms=100, attenuation_db=20), mixer)
    path.heard(Heard("r1", 0.0, np.full(160, 10_000, np.int16), 16_000))
    path.heard(Heard("r1", 0.01, np.full(160, 10_000, np.int16), 16_000))
    sound = recorded(mixer, 8).astype(float)
    assert abs(sound[:1_600]).max() < 100
    loud = np.sqrt(np.mean(sound[1_600:1_920] ** 2))
    assert 500 < loud < 2_000
    assert abs(sound[1_600 + 320 + 960 + 10 :]).max() < 100


def test_an_echo_of_what_is_past_is_lost_and_the_rest_is_not():
    mixer = Mixer()
    recorded(mixer, 2)
    mixer.add_echo(CHUNK, np.concatenate([np.full(CHUNK, 9_000.0), np.full(100, 3_000.0)]))
    sound = mixer.take()
    assert abs(sound[:100].mean() - 3_000) < 5
    assert abs(sound[100:]).max() < 100


async def test_chunks_are_sent_when_they_are_full(monkeypatch):
    now, sent, before = [50.0], [], []

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        if len(sent) == 4:
            raise asyncio.CancelledError

    async def send(chunk: np.ndarray) -> None:
        sent.append((now[0], len(chunk)))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    microphone = Microphone(Mixer(), send, before=lambda: before.append(now[0]), clock=lambda: now[0])
    with pytest.raises(asyncio.CancelledError):
        await microphone.run()
    assert [length for _, length in sent] == [CHUNK] * 4
    assert [at for at, _ in sent] == pytest.approx([50.032, 50.064, 50.096, 50.128])
    assert before == pytest.approx([at for at, _ in sent])
    assert microphone.worst_late_s == pytest.approx(0.0)
