"""OpenAI's ``/v1/audio/transcriptions``."""

import asyncio
import io
import json

import av
import numpy as np
import pytest
from recordings_for_tests import TONE, wav

from parley.asr.messages import Segment, SpeechStoppedEvent, TranscribeReply, TranscriptEvent
from parley.errors import DeadlineExceededError
from parley.protocol import Word
from parley_gateway.audio.encoding import make_encoder
from parley_stages import Recognition

PATH = "/v1/audio/transcriptions"
REPLY = TranscribeReply(
    text="hello there good bye",
    confidence=0.9,
    words=[
        Word(text="hello", start_ms=100, end_ms=400, confidence=0.9),
        Word(text="there", start_ms=400, end_ms=700, confidence=0.8),
        Word(text="good", start_ms=2_000, end_ms=2_300, confidence=0.9),
        Word(text="bye", start_ms=3_723_400, end_ms=3_723_999, confidence=1.0),
    ],
    duration_ms=1_000,
    language="en",
)


async def transcribe(gateway, *, file=None, reply=REPLY, **fields):
    gateway.models.transcript = reply
    files = {"file": ("a.wav", wav() if file is None else file)}
    return await gateway.http.post(PATH, files=files, data={"model": "whisper-1", **fields})


async def test_a_recording_is_transcribed(gateway):
    answer = await transcribe(gateway, language="en", temperature="0", prompt="Names: Anna.")
    assert answer.status_code == 200
    assert answer.json() == {"text": REPLY.text, "usage": {"type": "duration", "seconds": 1.0}}
    ((samples, message),) = gateway.models.transcribed
    assert np.array_equal(samples, TONE)
    assert (message.language, message.phrases) == ("en", [])


@pytest.mark.parametrize("language", ["en-US", "EN_us"])
async def test_the_region_of_a_language_is_left_out(gateway, language):
    assert (await transcribe(gateway, language=language)).status_code == 200
    assert gateway.models.transcribed[0][1].language == "en"


@pytest.mark.parametrize(
    ("fields", "ready", "model", "language"),
    [
        ({}, {"moonshine_transcribe", "whisper_transcribe"}, "whisper_transcribe", ""),
        ({"language": ""}, {"moonshine_transcribe", "whisper_transcribe"}, "whisper_transcribe", ""),
        ({"language": "auto"}, {"moonshine_transcribe", "whisper_transcribe"}, "whisper_transcribe", "auto"),
        ({"language": "en"}, {"moonshine_transcribe", "whisper_transcribe"}, "moonshine_transcribe", "en"),
        ({"languages[]": ["es"]}, {"moonshine_transcribe", "whisper_transcribe"}, "whisper_transcribe", "es"),
        ({}, {"moonshine_transcribe"}, "moonshine_transcribe", ""),
        ({"model": "moonshine_transcribe"}, {"whisper_transcribe"}, "moonshine_transcribe", ""),
    ],
)
async def test_without_a_language_a_model_that_can_finds_it_out(gateway, fields, ready, model, language):
    gateway.models.ready = ready
    assert (await transcribe(gateway, **fields)).status_code == 200
    assert gateway.models.transcriber == model
    assert gateway.models.transcribed[0][1].language == language


@pytest.mark.parametrize("tag", ["-", "_en"])
async def test_a_tag_without_a_language_is_left_to_the_model_to_refuse(gateway, tag):
    await transcribe(gateway, language=tag)
    assert gateway.models.transcribed[0][1].language == tag


async def test_without_a_language_a_stream_names_none(gateway):
    hear_two_texts(gateway.models)
    await transcribe(gateway, stream="true")
    assert gateway.models.heard[0][3].options.language == ""


@pytest.mark.parametrize(
    ("fields", "text", "found", "said"),
    [
        ({}, "hola", "es", "es"),
        ({}, "guten Tag", "", "und"),  # the model understands several, and says nothing
        ({}, "", "", "und"),
        ({"language": "auto"}, "hola", "es", "es"),
        ({"language": "auto"}, "", "", "und"),
        ({"language": "es-MX"}, "hola", "", "es"),
        ({"language": "es-MX"}, "", "", "es"),
    ],
)
async def test_details_have_the_language_that_was_heard(gateway, fields, text, found, said):
    reply = TranscribeReply(text=text, language=found, duration_ms=1_000)
    answer = await transcribe(gateway, reply=reply, response_format="verbose_json", **fields)
    assert answer.json()["language"] == said


NOT_LOADED = "Request for unknown model: 'moonshine_transcribe' is not found"
NO_WEIGHTS = "weights_not_found: moonshine_transcribe has no weights on this server, whose log has the remedy"
NOT_IN_PROFILE = "not_in_profile: moonshine_transcribe is not part of the profile tiny"
NOT_READY = "Request for unknown model: 'moonshine_transcribe' has no available versions"


@pytest.mark.parametrize("model", ["moonshine_transcribe", "moonshine"])
@pytest.mark.parametrize("said", [NOT_LOADED, NO_WEIGHTS, NOT_IN_PROFILE])
async def test_a_model_that_the_server_does_not_serve_does_not_exist(gateway, model, said):
    answer = await transcribe(gateway, reply=said, model=model)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("moonshine_transcribe", NOT_READY),
        ("moonshine_transcribe", "Request for unknown model: 'moonshine_transcribe' is not at ready state"),
        # The server's own choice: another one may be being loaded.
        ("whisper-1", NOT_LOADED),
        ("nemotron_streaming", NOT_LOADED),
    ],
)
async def test_a_model_that_may_come_back_is_unavailable(gateway, model, said):
    answer = await transcribe(gateway, reply=said, model=model)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
    assert answer.headers["x-should-retry"] == "true"


@pytest.mark.parametrize(("said", "status"), [(NO_WEIGHTS, 503), (NOT_IN_PROFILE, 404)])
async def test_chosen_model_that_refuses_all_requests_is_no_failure_of_the_gateway(gateway, said, status):
    answer = await transcribe(gateway, reply=said, model="whisper-1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, said.partition(":")[0])


@pytest.mark.parametrize("name", ["parakeet_tdt", "parakeet_transcribe", "whisper", "whisper_transcribe"])
async def test_a_name_means_the_same_family_for_recordings_and_streams(gateway, name):
    family = name.partition("_")[0]
    hear_two_texts(gateway.models)
    await transcribe(gateway, model=name, stream="true")
    assert gateway.models.recognizer.startswith(family)
    await transcribe(gateway, model=name)
    assert gateway.models.transcriber == f"{family}_transcribe"


@pytest.mark.parametrize("model", ["whisper", "whisper_transcribe"])
async def test_a_stream_to_a_model_that_the_server_does_not_serve(gateway, model):
    gateway.models.refusal = "Request for unknown model: 'whisper' is not found"
    answer = await transcribe(gateway, model=model, stream="true")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_names_can_be_expected(gateway):
    answer = await transcribe(gateway, **{"keywords[]": ["Anna", "Ljubljana", " "]})
    assert answer.status_code == 200
    assert gateway.models.transcribed[0][1].phrases == ["Anna", "Ljubljana"]


@pytest.mark.parametrize(
    ("form", "kind", "text"),
    [
        ("text", "text/plain", "hello there good bye\n"),
        (
            "srt",
            "application/x-subrip",
            (
                "1\n00:00:00,100 --> 00:00:00,700\nhello there\n\n"
                "2\n00:00:02,000 --> 00:00:02,300\ngood\n\n"
                "3\n01:02:03,400 --> 01:02:03,999\nbye\n"
            ),
        ),
        (
            "vtt",
            "text/vtt",
            (
                "WEBVTT\n\n00:00:00.100 --> 00:00:00.700\nhello there\n\n"
                "00:00:02.000 --> 00:00:02.300\ngood\n\n01:02:03.400 --> 01:02:03.999\nbye\n"
            ),
        ),
    ],
)
async def test_other_forms(gateway, form, kind, text):
    answer = await transcribe(gateway, response_format=form)
    assert answer.headers["content-type"].startswith(kind)
    assert answer.text == text


async def test_details(gateway):
    answer = await transcribe(
        gateway, response_format="verbose_json", **{"timestamp_granularities[]": ["word", "segment"]}
    )
    body = answer.json()
    assert (body["task"], body["language"], body["duration"]) == ("transcribe", "en", 1.0)
    assert body["words"][1] == {"word": "there", "start": 0.4, "end": 0.7}
    assert [(one["id"], one["text"], one["start"], one["end"]) for one in body["segments"]][:2] == [
        (0, "hello there", 0.1, 0.7),
        (1, "good", 2.0, 2.3),
    ]
    assert body["segments"][0]["avg_logprob"] == pytest.approx((np.log(0.9) + np.log(0.8)) / 2)


@pytest.mark.parametrize(
    ("asked", "there"), [(["word"], "words"), ([], "segments"), (["segment"], "segments")]
)
async def test_only_the_times_that_are_asked_for(gateway, asked, there):
    answer = await transcribe(gateway, response_format="verbose_json", **{"timestamp_granularities[]": asked})
    assert [name for name in ("words", "segments") if name in answer.json()] == [there]


SEGMENTED = TranscribeReply(
    text="Hello there. Good-bye!",
    confidence=0.8,
    segments=[
        Segment(text="Hello there.", start_ms=100, end_ms=700, confidence=0.9),
        Segment(text="Good-bye!", start_ms=2_000, end_ms=2_300, confidence=0.6),
    ],
    duration_ms=3_000,
)


async def transcribe_without_times(gateway, **fields):
    gateway.models.ready = {"moonshine_transcribe"}
    return await transcribe(gateway, **{"reply": SEGMENTED, **fields})


async def test_the_model_that_the_server_has_is_asked(gateway):
    assert (await transcribe_without_times(gateway)).json()["text"] == SEGMENTED.text
    assert gateway.models.transcriber == "moonshine_transcribe"
    await transcribe_without_times(gateway, model="parakeet_transcribe")
    assert gateway.models.transcriber == "parakeet_transcribe"


async def test_segments_need_no_times_of_words(gateway):
    answer = await transcribe_without_times(gateway, response_format="srt")
    assert answer.text == (
        "1\n00:00:00,100 --> 00:00:00,700\nHello there.\n\n2\n00:00:02,000 --> 00:00:02,300\nGood-bye!\n"
    )
    body = (await transcribe_without_times(gateway, response_format="verbose_json")).json()
    assert [(one["text"], one["start"], one["end"]) for one in body["segments"]] == [
        ("Hello there.", 0.1, 0.7),
        ("Good-bye!", 2.0, 2.3),
    ]
    assert body["segments"][1]["avg_logprob"] == pytest.approx(np.log(0.6))


async def test_missing_word_times_are_refused(gateway):
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
    answer = await transcribe_without_times(gateway, **fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "timestamp_granularities")
    assert "no word times" in error["message"]
    silence = TranscribeReply(text="", duration_ms=100)
    assert (await transcribe_without_times(gateway, reply=silence, **fields)).json()["words"] == []


def encoded(form):
    """The tone in a file of the gateway's encoder."""
    encoder = make_encoder(form, 16_000)
    return encoder.encode(TONE) + encoder.finish()


def recorded(container, codec):
    """The tone in a stereo file, as browsers and telephones record it."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as written:
        stream = written.add_stream(codec, rate=48_000, layout="stereo")
        tone = np.repeat(np.repeat(TONE, 3), 2).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(tone, format="s16", layout="stereo")
        frame.sample_rate = 48_000
        written.mux(stream.encode(frame))
        written.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize(
    "file",
    [
        *(pytest.param(encoded(form), id=form) for form in ("mp3", "opus", "flac", "aac")),
        *(
            pytest.param(recorded(*kind), id=f"stereo {kind[0]}")
            for kind in (("webm", "libopus"), ("mp4", "aac"), ("mp3", "libmp3lame"))
        ),
    ],
)
async def test_compressed_recordings_are_read(gateway, file):
    assert (await transcribe(gateway, file=file)).status_code == 200
    samples, _ = gateway.models.transcribed[0]
    assert abs(len(samples) - 16_000) < 3_000
    assert np.abs(samples).max() > 6_000


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (b"", "no audio file of a known form"),
        (b"#EXTM3U\nfile:///etc/passwd\n", "no audio file of a known form"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "no audio file of a known form"),
        (b"OggS" + bytes(1_000), "cannot be read as ogg"),
        (b"fLaC" + bytes(1_000), "cannot be read as flac"),
        (b"\x1a\x45\xdf\xa3" + bytes(1_000), "cannot be read as matroska"),
        (b"RIFF\x00\x00\x00\x00WAVE" + bytes(100), "cannot be read as wav"),
        (wav(np.zeros(0, np.int16)), "empty"),
    ],
)
async def test_files_without_audio_are_refused(gateway, file, said):
    answer = await transcribe(gateway, file=file)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"], error["type"]) == ("invalid_file", "file", "invalid_request_error")
    assert said in error["message"]
    assert gateway.models.transcribed == []


async def test_recordings_have_a_longest_length(start):
    gateway = await start(stages={"recording_s": 1})
    assert (await transcribe(gateway)).status_code == 200
    answer = await transcribe(gateway, file=wav(np.zeros(20_000, np.int16)))
    assert "longer than 1 s" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({"response_format": "diarized_json"}, "response_format", 400),
        ({"include[]": ["logprobs"]}, "include", 400),
        ({"known_speaker_names[]": ["Anna"]}, "known_speaker_names", 400),
        ({"stream": "true", "response_format": "srt"}, "stream", 400),
        ({"temperature": "7"}, "temperature", 400),
        ({"nonsense": "1"}, "nonsense", 400),
        ({"model": "qwen3"}, "model", 404),
        ({"model": "nova-3"}, "model", 404),
    ],
)
async def test_unsupported_fields_are_refused(gateway, fields, param, status):
    answer = await transcribe(gateway, **fields)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param


async def test_something_missing_is_named(gateway):
    without_file = await gateway.http.post(PATH, data={"model": "whisper-1"})
    without_model = await gateway.http.post(PATH, files={"file": ("a.wav", wav())})
    assert [answer.json()["error"]["param"] for answer in (without_file, without_model)] == ["file", "model"]
    assert (
        await gateway.http.post(PATH, content=b"--x", headers={"content-type": "multipart/form-data"})
    ).status_code == 400


@pytest.mark.parametrize(
    ("said", "status", "code", "retry"),
    [
        ("unsupported_language: not xx", 400, "unsupported_language", "false"),
        ("overloaded: enough", 503, "overloaded", "true"),
        ("inference_failed: oh no", 502, "inference_failed", "true"),
    ],
)
async def test_errors_of_the_model_have_their_status(gateway, said, status, code, retry):
    answer = await transcribe(gateway, reply=said)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["x-should-retry"] == retry


def hear_two_texts(models):
    """Two utterances, the second of which is ended by the end of the recording."""

    def hear(request):
        _, _, _samples, message = request
        if message.flush:
            return [
                SpeechStoppedEvent(utterance=2, at_ms=1, detected_at_ms=2),
                TranscriptEvent(utterance=2, text="good bye", is_final=True),
            ]
        if sum(len(one[2]) for one in models.heard) == 16_000:
            return [
                TranscriptEvent(utterance=1, text="hel", is_final=False),
                SpeechStoppedEvent(utterance=1, at_ms=1, detected_at_ms=2),
                TranscriptEvent(utterance=1, text="hello", is_final=True),
            ]
        return []

    models.hear = hear


async def test_text_is_streamed_as_it_is_recognised(gateway):
    hear_two_texts(gateway.models)
    answer = await transcribe(gateway, stream="true", **{"keywords[]": ["Anna"]})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
    assert events == [
        {"type": "transcript.text.delta", "delta": "hello"},
        {"type": "transcript.text.delta", "delta": " good bye"},
        {"type": "transcript.text.done", "text": "hello good bye"},
    ]
    assert gateway.models.heard[0][3].options.phrases == ["Anna"]
    assert gateway.models.ended.is_set()


async def test_a_failed_stream_is_an_error(gateway):
    gateway.models.hear = lambda _: "inference_failed: oh no"
    answer = await transcribe(gateway, stream="true")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "stream_lost")


async def test_a_recording_that_cannot_be_passed_on_is_a_failure(gateway, monkeypatch):
    async def send_all(recognition, audio):
        raise DeadlineExceededError("no room")

    monkeypatch.setattr(Recognition, "send_all", send_all)
    answer = await transcribe(gateway, stream="true")
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert gateway.models.ended.is_set()


async def test_a_client_that_leaves_ends_the_recognition(gateway):
    gateway.models.may_hear.clear()
    asking = asyncio.create_task(transcribe(gateway, stream="true"))
    await asyncio.wait_for(gateway.models.hearing.wait(), 5)
    asking.cancel()
    await asyncio.wait([asking])
    gateway.models.may_hear.set()
    await asyncio.wait_for(gateway.models.ended.wait(), 5)
