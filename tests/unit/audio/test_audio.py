"""Samples, sample rates, the bounded buffer and the timeline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.agent.speech_events import Timeline
from parley.audio.buffer import AudioBuffer
from parley.audio.pcm import Resampler, decode_pcm16
from parley.errors import InvalidAudioError
from parley.protocol import OUTPUT_SAMPLE_RATES


def ramp(start, count):
    return np.arange(start, start + count, dtype=np.int16)


def test_bytes_are_little_endian_samples():
    assert decode_pcm16(b"\x01\x00\xff\xff\x00\x80").tolist() == [1, -1, -32768]
    assert decode_pcm16(b"").tolist() == []
    assert len(decode_pcm16(bytes(32_000))) == 16_000


@pytest.mark.parametrize("size", [1, 641, 32_002])
def test_bytes_that_are_no_chunk(size):
    with pytest.raises(InvalidAudioError):
        decode_pcm16(bytes(size))


@pytest.mark.parametrize("to_rate", OUTPUT_SAMPLE_RATES)
@pytest.mark.parametrize("pieces", [[1], [100], [2_205, 1, 0, 4_000], [441] * 50])
def test_resampling_in_pieces_has_the_exact_length(to_rate, pieces):
    resampler = Resampler(22_050, to_rate)
    out = [resampler.push(np.zeros(size, np.int16)) for size in pieces] + [resampler.finish()]
    assert sum(map(len, out)) == round(sum(pieces) * to_rate / 22_050)


def test_resampling_in_pieces_equals_resampling_at_once():
    tone = (np.sin(np.arange(22_050) * 0.05) * 20_000).astype(np.int16)
    whole, parts = Resampler(22_050, 16_000), Resampler(22_050, 16_000)
    at_once = np.concatenate([whole.push(tone), whole.finish()])
    in_pieces = np.concatenate(
        [*(parts.push(tone[at : at + 777]) for at in range(0, len(tone), 777)), parts.finish()]
    )
    # Rounding to 16 bits is dithered.
    assert np.abs(at_once.astype(int) - in_pieces.astype(int)).max() <= 3


def test_the_oldest_audio_makes_room():
    buffer = AudioBuffer(10)
    assert buffer.append(ramp(0, 8), 1.0) == 0
    assert buffer.append(ramp(8, 5), 2.0) == 3
    piece = buffer.take(100)
    assert piece.samples.tolist() == list(range(3, 13))
    assert (piece.position, piece.arrived, len(buffer)) == (3, 2.0, 0)


def test_a_chunk_larger_than_the_buffer_keeps_its_end():
    buffer = AudioBuffer(4)
    assert buffer.append(ramp(0, 9), 0.0) == 5
    assert buffer.take(100).samples.tolist() == [5, 6, 7, 8]


def test_only_whole_windows_are_taken():
    buffer = AudioBuffer(100)
    buffer.append(ramp(0, 10), 0.0)
    assert len(buffer.take(100, 4).samples) == 8
    assert buffer.take(100, 4) is None
    assert buffer.take(100).samples.tolist() == [8, 9]
    assert buffer.take(100) is None


def test_a_gap_ends_a_piece():
    buffer = AudioBuffer(100)
    buffer.append(ramp(0, 5), 0.0)
    buffer.skip(7)
    buffer.append(ramp(50, 4), 1.0)
    first, second = buffer.take(100, 4), buffer.take(100, 4)
    assert (first.position, len(first.samples)) == (0, 5)
    assert (second.position, len(second.samples)) == (12, 4)


@given(
    st.lists(st.tuples(st.sampled_from("ast"), st.integers(0, 60)), max_size=60),
    st.sampled_from([1, 4, 16]),
)
def test_audio_comes_out_in_order_and_at_its_position(actions, multiple):
    buffer, taken, dropped = AudioBuffer(64), [], 0
    for action, count in actions:
        if action == "a":
            dropped += buffer.append(ramp(buffer.position, count), 0.0)
        elif action == "s":
            buffer.skip(count)
        elif piece := buffer.take(32, multiple):
            assert piece.samples.tolist() == list(range(piece.position, piece.position + len(piece.samples)))
            taken += piece.samples.tolist()
        assert len(buffer) <= 64
    assert taken == sorted(set(taken))
    offered = sum(count for action, count in actions if action == "a")
    assert len(taken) + dropped + len(buffer) == offered


def test_an_empty_chunk_is_nothing():
    buffer = AudioBuffer(64)
    assert buffer.append(ramp(0, 0), 0.0) == 0
    assert buffer.take(32) is None
    buffer.append(ramp(0, 8), 0.0)
    assert len(buffer.take(32).samples) == 8


def test_times_go_on_after_what_was_never_heard():
    line = Timeline()
    line.on_processed(0, 1_000)
    line.on_processed(5_000, 1_000)
    assert [line.client_position(at) for at in (0, 999, 1_000, 1_500)] == [0, 999, 5_000, 5_500]
    line.restart()
    line.on_processed(8_000, 100)
    assert line.client_position(50) == 8_050


def test_when_audio_arrived():
    line = Timeline()
    for count in range(1, 11):
        line.arrived(count * 320, float(count))
    assert [line.arrival(at) for at in (1, 320, 321, 3_200, 3_201)] == [1.0, 1.0, 2.0, 10.0, None]
