import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from voice_samples import make_voice

from parley.errors import InvalidMessageError, UnsupportedVoiceError, VoiceDamagedError
from parley.tts.voice_messages import VoiceDetails
from parley_torch.tts.voices.voice import check_details, check_voice_id, read_voice, write_voice


def test_a_file_gives_back_the_voice():
    voice = make_voice(languages=["en", "de"], consent="I agree.", variant="turbo", warnings=["noisy"])
    read = read_voice(write_voice(voice), "anna")
    assert read.details == voice.details
    for name in ("speaker_embedding", "t3_prompt_tokens", "speaker", "prompt_tokens", "prompt_mel"):
        np.testing.assert_array_equal(getattr(read, name), getattr(voice, name))
        assert getattr(read, name).dtype == getattr(voice, name).dtype
        assert not getattr(read, name).flags.writeable


def test_the_id_is_not_in_the_file():
    assert read_voice(write_voice(make_voice("anna")), "bert").voice_id == "bert"


def test_t3_needs_no_prompt():
    voice = replace(make_voice(), t3_prompt_tokens=np.zeros(0, np.int32))
    assert read_voice(write_voice(voice), "anna").t3_prompt_tokens.shape == (0,)


@pytest.mark.parametrize(
    "voice_id", ["", "../anna", "Anna", "anna/1", "-anna", "anna.x", "a" * 65, "ann\na", "änna"]
)
def test_ids_that_could_be_paths_are_refused(voice_id):
    with pytest.raises(UnsupportedVoiceError):
        check_voice_id(voice_id)
    with pytest.raises(UnsupportedVoiceError):
        write_voice(make_voice(voice_id))
    with pytest.raises(UnsupportedVoiceError):
        read_voice(write_voice(make_voice()), voice_id)


@pytest.mark.parametrize(
    "change",
    [
        {"speaker_embedding": np.zeros(255, np.float32)},
        {"speaker_embedding": np.full(256, np.nan, np.float32)},
        {"speaker": np.zeros(192, np.float64)},
        {"speaker": np.full(192, np.inf, np.float32)},
        {"prompt_tokens": np.full(50, 6561, np.int32)},
        {"prompt_tokens": np.full(50, -1, np.int32)},
        {"prompt_tokens": np.zeros(0, np.int32), "prompt_mel": np.zeros((0, 80), np.float32)},
        {"prompt_mel": np.zeros((99, 80), np.float32)},
        {"prompt_mel": np.full((100, 80), 1e30, np.float32)},
        {"t3_prompt_tokens": np.zeros(751, np.int32)},
        {"t3_prompt_tokens": np.zeros(10, np.int64)},
    ],
)
def test_unusable_tensors_are_refused(change):
    with pytest.raises(VoiceDamagedError):
        write_voice(replace(make_voice(), **change))


def changed_header(data, change):
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    change(header)
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data[8 + size :]


def newer(header):
    header["__metadata__"]["parley_voice"] = json.dumps({"version": 2})


def without_speaker(header):
    header["voice"] = header.pop("speaker")


def as_numbers(header):
    header["speaker"]["dtype"] = "I32"


@pytest.mark.parametrize(
    "change", [newer, without_speaker, as_numbers, lambda header: header.pop("__metadata__")]
)
def test_other_headers_are_refused(change):
    with pytest.raises(VoiceDamagedError):
        read_voice(changed_header(write_voice(make_voice()), change), "anna")


@pytest.mark.parametrize("size", [0, 7, 8, 200, 30_000])
def test_a_cut_file_is_refused(size):
    with pytest.raises(VoiceDamagedError):
        read_voice(write_voice(make_voice())[:size], "anna")


def test_other_formats_are_refused():
    with pytest.raises(VoiceDamagedError):
        read_voice(b"\x80\x04\x95 a pickle " * 10, "anna")
    with pytest.raises(VoiceDamagedError, match="at most"):
        read_voice(bytes(5 << 20), "anna")


@pytest.mark.parametrize(
    "details",
    [
        VoiceDetails(name="n" * 101),
        VoiceDetails(consent="c" * 2_001),
        VoiceDetails(languages=["en"] * 51),
        VoiceDetails(languages=["e" * 21]),
    ],
)
def test_long_details_are_refused(details):
    with pytest.raises(InvalidMessageError):
        check_details(details)


def test_a_refusal_does_not_repeat_the_file():
    header = b'{"__metadata__": {"parley_voice": "I agree. Anna \xff"}}'
    with pytest.raises(VoiceDamagedError) as refused:
        read_voice(struct.pack("<Q", len(header)) + header, "anna")
    assert "Anna" not in str(refused.value)
