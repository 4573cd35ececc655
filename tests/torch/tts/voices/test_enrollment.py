"""The service of voice_enrollment with a fake VoiceMaker, and the model with small networks."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import fake_pb_utils
import numpy as np
import pytest
from fake_pb_utils import Request
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from voice_samples import as_file, make_voice, speech

from parley.errors import (
    ConsentMissingError,
    DeadlineExceededError,
    InvalidMessageError,
    ModelLoadingError,
    NotPermittedError,
    OverloadedError,
    ReferenceTooShortError,
    TooManyVoicesError,
    UnsupportedVoiceError,
    VoiceExistsError,
)
from parley.inference import struct_tensor, text_tensor
from parley.runtime.parameters import Parameters
from parley.tts.voice_messages import DeleteVoice, DescribeVoice, EnrollVoice, ListVoices
from parley_torch.models.voice_enrollment import EnrollmentModel
from parley_torch.tts.voices.enrollment.recordings import EnrollmentLimits
from parley_torch.tts.voices.enrollment.service import EnrollmentService, Policy, slug
from parley_torch.tts.voices.objects import FolderObjects
from parley_torch.tts.voices.store import VoiceStore

_WAV_HEADER = 44
CONSENT = "I agree. Anna, 2 May 2025"


class FakeMaker:
    """Makes the same voice of every recording, while its gate is open."""

    signature = "fake 1"

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.made = []

    def make(self, recording, voice_id, details):
        assert self.gate.wait(10)
        self.made.append(voice_id)
        return replace(make_voice(voice_id), details=details)


@pytest.fixture
def maker():
    made = FakeMaker()
    yield made
    made.gate.set()


@pytest.fixture
def store(tmp_path):
    return VoiceStore(FolderObjects(tmp_path / "voices", 1 << 20), max_voices=3)


@pytest.fixture
def make_service(maker, store, detect):
    executor = ThreadPoolExecutor(1)

    def make(**policy):
        return EnrollmentService(maker, detect, store, Policy(**policy), executor)

    yield make
    maker.gate.set()
    executor.shutdown()


@pytest.fixture
def service(make_service):
    return make_service()


@pytest.fixture(scope="module")
def recording():
    return as_file(speech(8.5))


def enroll(**fields):
    return EnrollVoice(**{"name": "Anna Müller", "consent": CONSENT, **fields})


async def test_enroll_list_describe_delete(service, recording):
    (made,) = (await service.answer(enroll(languages=["de"]), recording)).voices
    assert made.voice_id.startswith("anna-muller-")
    assert (made.details.name, made.details.consent, made.details.languages) == (
        "Anna Müller",
        CONSENT,
        ["de"],
    )
    (listed,) = (await service.answer(ListVoices(), b"")).voices
    assert (listed.voice_id, listed.digest, listed.details.consent) == (made.voice_id, made.digest, "")
    assert (await service.answer(DescribeVoice(voice_id=made.voice_id), b"")).voices == [made]
    assert (await service.answer(DeleteVoice(voice_id=made.voice_id), b"")).voices == []
    assert (await service.answer(ListVoices(), b"")).voices == []
    for gone in (DescribeVoice(voice_id=made.voice_id), DeleteVoice(voice_id=made.voice_id)):
        with pytest.raises(UnsupportedVoiceError):
            await service.answer(gone, b"")


async def test_a_repeated_request_changes_nothing(service, recording):
    first = await service.answer(enroll(), recording)
    assert await service.answer(enroll(), recording) == first
    # The same samples in another format are the same recording.
    assert await service.answer(enroll(sample_rate=16_000), recording[_WAV_HEADER:]) == first
    assert (await service.answer(ListVoices(), b"")).voices[1:] == []


async def test_a_chosen_id_is_not_taken_twice(service, recording):
    await service.answer(enroll(voice_id="anna"), recording)
    with pytest.raises(VoiceExistsError):
        await service.answer(enroll(voice_id="anna", name="Bert"), recording)
    (made,) = (await service.answer(enroll(voice_id="anna", name="Bert", replace=True), recording)).voices
    assert made.details.name == "Bert"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"consent": " "}, ConsentMissingError),
        ({"name": " "}, InvalidMessageError),
        ({"name": "n" * 101}, InvalidMessageError),
        ({"consent": "c" * 2_001}, InvalidMessageError),
        ({"voice_id": "../anna"}, UnsupportedVoiceError),
        ({"voice_id": "Anna"}, UnsupportedVoiceError),
    ],
)
async def test_the_request_is_checked_first(service, maker, recording, fields, error):
    with pytest.raises(error):
        await service.answer(enroll(**fields), recording)
    assert maker.made == []


async def test_the_recording_is_checked_first(service, maker):
    with pytest.raises(ReferenceTooShortError):
        await service.answer(enroll(), as_file(speech(3.0)))
    assert maker.made == []


async def test_consent_need_not_be_required(make_service, recording):
    service = make_service(require_consent=False)
    assert (await service.answer(enroll(consent=""), recording)).voices[0].details.consent == ""


async def test_warnings_are_stored(make_service):
    service = make_service(limits=EnrollmentLimits(min_speech_s=2.0, min_snr_db=200.0))
    (made,) = (await service.answer(enroll(), as_file(speech(6.0, 8_000), 8_000))).voices
    assert made.details.warnings == ["noisy", "narrow band"]


@pytest.mark.parametrize(
    ("permitted", "message"),
    [
        ({"list"}, enroll()),
        ({"enroll"}, ListVoices()),
        ({"enroll", "list", "describe"}, DeleteVoice(voice_id="anna")),
        ({"enroll", "list", "describe"}, enroll(voice_id="anna", replace=True)),
    ],
)
async def test_permissions(make_service, store, recording, permitted, message):
    await store.put(make_voice())
    with pytest.raises(NotPermittedError):
        await make_service(permitted=frozenset(permitted)).answer(message, recording)
    assert set(await store.digests()) == {"anna"}


async def test_the_store_is_bounded(service, recording):
    for name in ("anna", "bert", "carl"):
        await service.answer(enroll(voice_id=name), recording)
    with pytest.raises(TooManyVoicesError):
        await service.answer(enroll(voice_id="dora"), recording)


async def test_changes_are_serial_and_reads_concurrent(service, maker, recording):
    maker.gate.clear()
    changes = [
        asyncio.create_task(service.answer(message, recording))
        for message in (enroll(voice_id="anna"), DeleteVoice(voice_id="anna"), enroll(voice_id="bert"))
    ]
    assert (await service.answer(ListVoices(), b"")).voices == []
    assert not any(change.done() for change in changes)
    maker.gate.set()
    await asyncio.gather(*changes)
    assert [voice.voice_id for voice in (await service.answer(ListVoices(), b"")).voices] == ["bert"]


async def test_too_many_at_once_are_refused(make_service, maker, recording):
    service = make_service(max_waiting=2)
    maker.gate.clear()
    waiting = [asyncio.create_task(service.answer(enroll(voice_id=name), recording)) for name in ("a", "b")]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await service.answer(ListVoices(), b"")
    maker.gate.set()
    await asyncio.gather(*waiting)
    assert len((await service.answer(ListVoices(), b"")).voices) == 2


async def test_a_request_has_a_deadline(make_service, maker, recording):
    service = make_service(timeout_s=0.05)
    maker.gate.clear()
    with pytest.raises(DeadlineExceededError):
        await service.answer(enroll(), recording)
    maker.gate.set()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Anna Müller", "anna-muller"),
        ("  Dr. O'Neil ", "dr-o-neil"),
        ("安娜", "voice"),
        ("x" * 39 + " y", "x" * 39),
        ("___", "voice"),
    ],
)
def test_names_as_ids(name, expected):
    assert slug(name) == expected


FOLDER = Path(__file__).parents[4] / "model_repository" / "voice_enrollment"


def parameters(weights, tmp_path, values=None):
    environment = {"PARLEY_WEIGHTS_VOICE_ENROLLMENT": str(weights), "PARLEY_VOICES": str(tmp_path / "voices")}
    return Parameters("voice_enrollment", values or {}, model_dir=FOLDER, environment=environment)


@pytest.fixture
def model(weights, tmp_path):
    running = EnrollmentModel(fake_pb_utils, parameters(weights, tmp_path))
    yield running
    running.close()


def ask(model, request):
    model.execute([request])
    assert request.sender.final.wait(20)
    sent, final = request.sender.sent
    assert final == ("final",)
    assert request.sender.sends == 1  # the answer and its end at once
    kind, content = sent
    return content if kind == "error" else json.loads(content["REPLY"][0])


def enrollment(recording):
    message = struct_tensor(EnrollVoice(name="Anna", consent="Yes."))
    return Request({"REQUEST": message, "AUDIO": np.frombuffer(recording, np.uint8)})


def test_a_voice_is_made_and_listed(model, recording):
    made = ask(model, enrollment(recording))
    (voice,) = made["voices"]
    assert (voice["prompt_s"], voice["built_in"], voice["details"]["name"]) == (8.48, False, "Anna")
    listed = ask(model, Request({"REQUEST": struct_tensor(ListVoices())}))
    assert [entry["voice_id"] for entry in listed["voices"]] == [voice["voice_id"]]


def test_an_empty_request_asks_for_the_list(model):
    assert ask(model, Request({"REQUEST": text_tensor(b"")})) == {"voices": []}


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{", "invalid_message"),
        (b"\xff", "invalid_message"),
        (b'{"op":"sing"}', "invalid_message"),
        (b'{"op":"enroll"}', "invalid_message"),
        (b'{"op":"enroll","name":"Anna"}', "consent_missing"),
        (b'{"op":"enroll","name":"Anna","consent":"Yes."}', "invalid_reference"),
        (b'{"op":"describe","voice_id":"missing"}', "unsupported_voice"),
        (b'{"op":"delete","voice_id":"missing"}', "not_permitted"),
    ],
)
def test_errors_have_their_codes(model, raw, code):
    answer = ask(model, Request({"REQUEST": text_tensor(raw)}))
    assert answer.startswith(f"{code}: ")


def test_requests_end_when_the_model_is_unloaded(weights, tmp_path, recording):
    model = EnrollmentModel(fake_pb_utils, parameters(weights, tmp_path))
    requests = [enrollment(recording) for _ in range(4)]
    model.execute(requests)
    model.close()
    for request in requests:
        assert request.sender.sent[-1] == ("final",)
        assert request.sender.sends == 1


@pytest.mark.parametrize(
    "values",
    [
        {"permit": "enroll,sing"},
        {"variant": "huge"},
        {"require_consent": "perhaps"},
        {"min_speech_s": "0"},
        {"voices": "s3://?"},
    ],
)
def test_unusable_settings_are_refused_at_the_start(weights, values):
    environment = {"PARLEY_WEIGHTS_VOICE_ENROLLMENT": str(weights)}
    with pytest.raises(ModelLoadingError):
        EnrollmentModel(
            fake_pb_utils, Parameters("voice_enrollment", values, model_dir=FOLDER, environment=environment)
        )


@pytest.mark.parametrize("path", ["config.pbtxt", "configs/tiny.pbtxt"])
def test_both_profiles_can_be_loaded(weights, tmp_path, path):
    config = text_format.Parse((FOLDER / path).read_text(), model_config_pb2.ModelConfig())
    values = {name: entry.string_value for name, entry in config.parameters.items()}
    EnrollmentModel(fake_pb_utils, parameters(weights, tmp_path, values)).close()
