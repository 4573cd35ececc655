"""The service behind the model, with a maker of its own."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from a_voice import make_voice
from recordings import as_file, speech

from parley.errors import (
    ConsentMissingError,
    DeadlineExceededError,
    InvalidMessageError,
    NotPermittedError,
    OverloadedError,
    ReferenceTooShortError,
    TooManyVoicesError,
    UnsupportedVoiceError,
    VoiceExistsError,
)
from parley.tts.voices.enrollment.checks import EnrollmentLimits
from parley.tts.voices.enrollment.service import EnrollmentService, Policy, slug
from parley.tts.voices.kept import ObjectVoiceStore
from parley.tts.voices.messages import DeleteVoice, DescribeVoice, EnrollVoice, ListVoices
from parley.tts.voices.objects import FolderObjects

_WAV_HEADER = 44
CONSENT = "I agree. Anna, 2 May 2025"


class FakeMaker:
    """Makes the same voice of everything, when it may."""

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
    return ObjectVoiceStore(FolderObjects(tmp_path / "voices", 1 << 20), max_voices=3)


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


async def test_asking_twice_changes_nothing(service, recording):
    first = await service.answer(enroll(), recording)
    assert await service.answer(enroll(), recording) == first
    # The same samples in another wrapping are the same recording.
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
async def test_what_is_asked_is_checked_before_anything_is_made(service, maker, recording, fields, error):
    with pytest.raises(error):
        await service.answer(enroll(**fields), recording)
    assert maker.made == []


async def test_the_recording_is_checked_before_anything_is_made(service, maker):
    with pytest.raises(ReferenceTooShortError):
        await service.answer(enroll(), as_file(speech(3.0)))
    assert maker.made == []


async def test_consent_can_be_a_matter_of_the_operator(make_service, recording):
    service = make_service(require_consent=False)
    assert (await service.answer(enroll(consent=""), recording)).voices[0].details.consent == ""


async def test_what_is_wrong_with_a_recording_is_kept(make_service):
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
async def test_what_is_not_permitted(make_service, store, recording, permitted, message):
    await store.put(make_voice())
    with pytest.raises(NotPermittedError):
        await make_service(permitted=frozenset(permitted)).answer(message, recording)
    assert set(await store.digests()) == {"anna"}


async def test_the_store_is_bounded(service, recording):
    for name in ("anna", "bert", "carl"):
        await service.answer(enroll(voice_id=name), recording)
    with pytest.raises(TooManyVoicesError):
        await service.answer(enroll(voice_id="dora"), recording)


async def test_changes_are_made_in_order_and_questions_between_them(service, maker, recording):
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
