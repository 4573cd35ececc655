"""What all endpoints of OpenAI's REST API share, and the list of models."""

import asyncio

import pytest
from fake_models import Chat
from recordings_for_tests import wav

from parley.asr.messages import TranscribeReply
from parley.errors import ShuttingDownError
from parley.llm.messages import Completed
from parley_gateway.errors import ForbiddenError, RateLimitedError, UnauthorizedError

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def answers(gateway):
    """The model says nothing, successfully."""

    async def answer(message):
        yield {"EVENT": Completed(finish_reason="stop")}

    gateway.models.answer = answer


async def ask(gateway):
    return await gateway.http.post(PATH, json={"model": "gpt-4o", "messages": HELLO})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UnauthorizedError("who?"), (401, "authentication_error", "invalid_api_key")),
        (ForbiddenError("no"), (403, "permission_error", "forbidden")),
        (RateLimitedError("slow", retry_after_s=3), (429, "rate_limit_error", "rate_limited")),
    ],
)
@pytest.mark.parametrize("path", [PATH, "/v1/audio/speech", "/v1/audio/transcriptions"])
async def test_refused_credentials_have_openais_codes(gateway, monkeypatch, path, error, expected):
    async def refuse(request, scope):
        raise error

    monkeypatch.setattr(gateway.gateway.guard, "admit", refuse)
    answer = await gateway.http.post(path, json={})
    said = answer.json()["error"]
    assert (answer.status_code, said["type"], said["code"]) == expected
    assert answer.headers.get("retry-after") == ("3" if answer.status_code == 429 else None)


async def test_requests_are_bounded(start):
    gateway = await start(stages={"requests": 1, "retry_after_s": 4})
    model = Chat(gateway.models)
    async with gateway.http.stream(
        "POST", PATH, json={"model": "qwen3", "messages": HELLO, "stream": True}
    ) as first:
        await anext(first.aiter_lines())
        refused = await ask(gateway)
        counted = (await gateway.http.get("/metrics")).text
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "4")
    assert 'parley_gateway_stage_requests{api="openai"} 1.0' in counted
    await asyncio.wait_for(model.aborted.wait(), 5)


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/listen"])
@pytest.mark.parametrize("fields", [{}, {"stream": "true"}])
async def test_too_many_recordings_are_refused_before_they_are_read(start, path, fields):
    gateway = await start(stages={"requests": 1})
    gateway.models.may_hear.clear()
    gateway.models.transcript = TranscribeReply(text="hello")
    if path == "/v1/listen":
        first = gateway.http.post(path, content=wav(), headers={"content-type": "audio/wav"})
    else:
        files = {"file": ("a.wav", wav())}
        first = gateway.http.post(path, files=files, data={"model": "whisper-1", **fields})
    first = asyncio.create_task(first)
    async with asyncio.timeout(5):
        await gateway.models.hearing.wait()
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == b"429"
        writer.close()
        gateway.models.may_hear.set()
        assert (await first).status_code == 200
        counted = (await gateway.http.get("/metrics")).text
    api = "deepgram" if path == "/v1/listen" else "openai"
    assert f'parley_gateway_stage_requests{{api="{api}"}} 0.0' in counted


async def test_a_refused_recording_releases_its_slot(start):
    gateway = await start(stages={"requests": 1})
    for path in ("/v1/audio/transcriptions", "/v1/listen"):
        answers = [await gateway.http.post(path, content=b"x") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [400] * 3


async def test_a_shutdown_waits_for_current_requests(gateway):
    model = Chat(gateway.models)
    asking = asyncio.create_task(ask(gateway))
    async with asyncio.timeout(5):
        await model.asked.wait()
        draining = asyncio.create_task(gateway.gateway.calls.drain(30.0))
        refused = await ask(gateway)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, ShuttingDownError.code)
        assert not draining.done()
        model.stop.set()
        assert (await asking).status_code == 200
        await draining


async def test_a_server_that_cannot_be_reached_is_left_out(start):
    gateway = await start(before=["127.0.0.1:1"])
    answers(gateway)
    first = await ask(gateway)
    assert (first.status_code, first.json()["error"]["code"]) == (503, "model_unavailable")
    dead, _ = gateway.gateway.servers.all
    assert not dead.is_ready
    assert (await ask(gateway)).status_code == 200


async def test_models(gateway):
    gateway.models.ready = {"qwen3", "espeak", "voice_agent"}
    listed = (await gateway.http.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["qwen3", "espeak"]
    one = (await gateway.http.get("/v1/models/qwen3")).json()
    assert one == {"id": "qwen3", "object": "model", "created": 0, "owned_by": "parley"}
    missing = await gateway.http.get("/v1/models/chatterbox")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_models_that_refuse_all_requests_of_a_plain_server_are_not_listed(gateway):
    gateway.models.ready = {"qwen3", "espeak"}
    gateway.models.refusing = {
        "whisper_transcribe": "weights_not_found: whisper_transcribe has no weights on this server",
        "kokoro": "not_in_profile: kokoro is not part of the profile tiny",
    }
    listed = (await gateway.http.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["qwen3", "espeak"]
    missing = await gateway.http.get("/v1/models/whisper_transcribe")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/audio/speech", {"model": "piper", "input": "Hello.", "voice": "alloy"}),
        (PATH, {"model": "qwen3", "messages": HELLO}),
        (PATH, {"model": "qwen3", "messages": HELLO, "stream": True}),
    ],
)
@pytest.mark.parametrize(
    ("why", "expected"),
    [("is not found", (404, "model_not_found")), ("has no available versions", (503, "model_unavailable"))],
)
async def test_models_that_are_named_and_not_served_do_not_exist(gateway, path, body, why, expected):
    async def refuse(_message):
        yield f"Request for unknown model: '{body['model']}' {why}"

    gateway.models.answer = refuse
    answer = await gateway.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == expected
