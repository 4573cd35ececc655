"""The steps of the ensemble for voices, with small networks."""

from __future__ import annotations

import json

import numpy as np
import pytest
from same_voice import assert_same_voice
from voice_samples import as_file, speech

from parley.errors import (
    ConsentMissingError,
    InferenceError,
    InvalidInputError,
    InvalidMessageError,
    ReferenceAudioError,
    ReferenceTooShortError,
)
from parley.inference import struct_tensor
from parley.runtime.parameters import Parameters
from parley.tts.voice_messages import EnrollVoice, VoiceDetails
from parley_torch.models.voice_ensemble import load_checks, load_conditionals
from parley_torch.tts.voices.enrollment.ensemble import Conditionals, ReferenceChecks
from parley_torch.tts.voices.enrollment.recordings import EnrollmentLimits
from parley_torch.tts.voices.enrollment.service import ReferenceRecording, VoiceMaker, read_reference

LIMITS = EnrollmentLimits()


@pytest.fixture(scope="module")
def recording():
    return as_file(speech(8.5))


@pytest.fixture(scope="module")
def maker(networks):
    return VoiceMaker(networks, prompt_s=3.0)


def request(audio, **fields):
    message = EnrollVoice(**{"name": "Anna", "consent": "I agree. Anna", **fields})
    return {"REQUEST": struct_tensor(message), "AUDIO": np.frombuffer(audio, np.uint8)}


def test_what_comes_out_is_what_is_stored(maker, detect, recording):
    (checked,) = ReferenceChecks(detect, LIMITS).serve([request(recording)])
    reference, warnings = read_reference(recording, None, detect, LIMITS)
    assert json.loads(checked["WARNINGS"].reshape(-1)[0]) == warnings
    (made,) = Conditionals(maker, LIMITS).serve([checked])
    voice = maker.make(reference, "anna", VoiceDetails())
    assert_same_voice(made, voice)


@pytest.mark.parametrize(
    ("fields", "audio", "error"),
    [
        ({"consent": ""}, None, ConsentMissingError),
        ({"name": " "}, None, InvalidMessageError),
        ({}, b"no recording", ReferenceAudioError),
        ({}, as_file(speech(2.0)), ReferenceTooShortError),
    ],
)
def test_what_makes_no_voice_is_refused_and_nothing_else(detect, recording, fields, audio, error):
    bad = request(recording if audio is None else audio, **fields)
    refused, taken = ReferenceChecks(detect, LIMITS).serve([bad, request(recording)])
    assert isinstance(refused, error)
    assert len(taken["AUDIO_24K"]) == pytest.approx(1.5 * len(taken["AUDIO_16K"]), abs=2)


def test_consent_may_be_left_to_the_caller(detect, recording):
    (taken,) = ReferenceChecks(detect, LIMITS, require_consent=False).serve([request(recording, consent="")])
    assert len(taken["AUDIO_16K"])


@pytest.mark.parametrize(
    "audio",
    [
        np.zeros(100, np.float32),
        np.zeros(40 * 24_000, np.float32),
        np.zeros(24_000, np.float64),
        np.full(24_000, np.nan, np.float32),
    ],
    ids=["short", "long", "double", "not finite"],
)
def test_audio_that_no_check_gives_is_refused(maker, audio):
    fine = np.zeros(16_000, np.float32)
    (refused,) = Conditionals(maker, LIMITS).serve([{"AUDIO_24K": audio, "AUDIO_16K": fine}])
    assert isinstance(refused, InvalidInputError)


def test_networks_that_fail_are_an_error_of_one_request():
    class Broken:
        def make(self, recording: ReferenceRecording, voice_id: str, details: VoiceDetails):
            raise RuntimeError("no memory")

    audio = {"AUDIO_24K": np.zeros(24_000, np.float32), "AUDIO_16K": np.zeros(16_000, np.float32)}
    (failed,) = Conditionals(Broken(), LIMITS).serve([audio])
    assert isinstance(failed, InferenceError)
    assert "RuntimeError: no memory" in str(failed)


def test_the_models_read_their_settings(weights):
    environment = {"PARLEY_WEIGHTS_VOICE_CONDITIONALS": str(weights)}
    conditionals = load_conditionals(
        Parameters("voice_conditionals", {"prompt_s": "2", "max_audio_s": "20"}, environment=environment)
    )
    assert conditionals.maker.signature.endswith(" 50")
    assert conditionals.limits.max_s == 20
    checks = load_checks(
        Parameters("voice_reference", {"require_consent": "false", "min_speech_s": "3"}, environment={})
    )
    assert (checks.require_consent, checks.limits.min_speech_s) == (False, 3)
