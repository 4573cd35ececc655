import numpy as np
import pytest

from parley_client.audio.playout import Heard
from parley_client.events import AgentAudio
from parley_testing.devices import EchoPath, Loudspeaker, Mixer
from parley_testing.rendering import Clip
from parley_testing.scenario import Echo

RATE = 16_000


def piece(response: str, offset_ms: int, length_ms: int, text: str = "") -> AgentAudio:
    return AgentAudio(1, response, offset_ms, RATE, np.ones(length_ms * 16, np.int16), text)


def test_loudspeaker_records_received_and_played_audio():
    speaker = Loudspeaker()
    speaker.push(piece("r1", 0, 100, "once"), 1.0)
    speaker.push(piece("r1", 100, 100, "upon a"), 1.0)
    speaker.advance(1.15)
    account = speaker.ledger["r1"]
    assert [entry.text for entry in account.entries] == ["once", "upon a"]
    assert account.heard_ms == pytest.approx(150)
    assert speaker.queued_ms(1.15) == pytest.approx(50)
    assert speaker.playing(1.15) == "r1"
    assert speaker.playing(1.3) is None
    assert speaker.played_ms("r1") == pytest.approx(200)
    assert speaker.played_ms("r2") == 0


def test_loudspeaker_pauses_and_continues():
    heard = []
    speaker = Loudspeaker(heard.append)
    speaker.push(piece("r1", 0, 200), 1.0)
    speaker.pause("r1", 1.1)
    assert speaker.halted
    speaker.advance(2.0)
    assert speaker.played_ms("r1") == pytest.approx(100)
    assert speaker.queued_ms(2.0) == pytest.approx(100)
    speaker.push(piece("r1", 200, 100), 2.0)
    speaker.resume("r1", 2.5)
    assert not speaker.halted
    speaker.advance(2.6)
    assert speaker.played_ms("r1") == pytest.approx(200)
    speaker.advance(3.0)
    assert speaker.played_ms("r1") == pytest.approx(300)
    assert sum(len(stretch.samples) for stretch in heard) == 300 * 16
    assert next(stretch.at_s for stretch in heard if stretch.at_s > 1.1) == pytest.approx(2.5)


def test_an_interruption_drops_what_is_queued_and_what_comes():
    speaker = Loudspeaker()
    speaker.push(piece("r1", 0, 500, "once"), 1.0)
    speaker.pause("r1", 1.1)
    speaker.interrupt("r1", 1.4)
    speaker.push(piece("r1", 500, 100, "upon"), 1.41)
    speaker.push(piece("r2", 0, 100, "okay"), 1.5)
    speaker.advance(2.0)
    assert speaker.played_ms("r1") == pytest.approx(100)
    assert speaker.played_ms("r2") == pytest.approx(100)
    assert [entry.text for entry in speaker.late] == ["upon"]
    assert [entry.text for entry in speaker.ledger["r1"].entries] == ["once"]


CHUNK = 512


def recorded(mixer: Mixer, chunks: int) -> np.ndarray:
    return np.concatenate([mixer.next_chunk() for _ in range(chunks)])


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
    first = mixer.next_chunk()
    mixer.place(clip(2 * CHUNK, 4_000))
    both, second = mixer.next_chunk(), mixer.next_chunk()
    assert abs(int(first.mean()) - 3_000) < 5
    assert abs(int(both.mean()) - 7_000) < 5
    assert abs(int(second.mean()) - 4_000) < 5


def test_loud_audio_is_clipped():
    mixer = Mixer()
    for _ in range(3):
        mixer.place(clip(CHUNK, 20_000))
    assert mixer.next_chunk().max() == 32_767


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
    sound = mixer.next_chunk()
    assert abs(sound[:100].mean() - 3_000) < 5
    assert abs(sound[100:]).max() < 100
