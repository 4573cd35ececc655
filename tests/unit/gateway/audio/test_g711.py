"""G.711 against the implementation that Python had."""

import importlib
import sys
import warnings

import numpy as np
import pytest

from parley_gateway.audio.codecs import decode_alaw, decode_ulaw, encode_alaw, encode_ulaw

EVERY_CODE = bytes(range(256))
EVERY_SAMPLE = np.arange(-32768, 32768).astype(np.int16)


@pytest.fixture
def audioop():
    if sys.version_info >= (3, 13):
        pytest.skip("needs the module audioop, which Python has had until 3.12")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module("audioop")


def test_every_code_means_what_the_standard_says(audioop):
    assert decode_ulaw(EVERY_CODE).tobytes() == audioop.ulaw2lin(EVERY_CODE, 2)
    assert decode_alaw(EVERY_CODE).tobytes() == audioop.alaw2lin(EVERY_CODE, 2)


def test_every_sample_gets_the_code_of_the_standard(audioop):
    assert encode_ulaw(EVERY_SAMPLE) == audioop.lin2ulaw(EVERY_SAMPLE.tobytes(), 2)
    assert encode_alaw(EVERY_SAMPLE) == audioop.lin2alaw(EVERY_SAMPLE.tobytes(), 2)


@pytest.mark.parametrize(("decode", "encode"), [(decode_ulaw, encode_ulaw), (decode_alaw, encode_alaw)])
def test_a_decoded_code_is_encoded_to_the_same_sample(decode, encode):
    samples = decode(EVERY_CODE)
    assert np.array_equal(decode(encode(samples)), samples)


def test_known_values():
    assert encode_ulaw(np.zeros(2, np.int16)) == b"\xff\xff"
    assert encode_alaw(np.zeros(2, np.int16)) == b"\xd5\xd5"
    assert decode_ulaw(b"\x00\x80").tolist() == [-32124, 32124]
    assert decode_alaw(b"\x2a\xaa").tolist() == [-32256, 32256]


def test_arrays_are_decoded_as_bytes_are():
    assert np.array_equal(decode_ulaw(np.frombuffer(EVERY_CODE, np.uint8)), decode_ulaw(EVERY_CODE))


def test_empty_audio_stays_empty():
    assert len(decode_ulaw(b"")) == len(decode_alaw(b"")) == 0
    assert encode_ulaw(np.zeros(0, np.int16)) == encode_alaw(np.zeros(0, np.int16)) == b""
