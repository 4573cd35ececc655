import time

import numpy as np
import pytest
from a_voice import make_voice
from fake_s3 import BUCKET, serving

from parley.errors import (
    ModelLoadingError,
    UnsupportedVoiceError,
    VoiceDamagedError,
    VoiceExistsError,
    VoiceStoreError,
    VoiceStoreRefusedError,
)
from parley.runtime.parameters import Parameters
from parley.tts.voices import s3
from parley.tts.voices.kept import ObjectVoiceStore
from parley.tts.voices.s3 import S3Address, S3Objects
from parley.tts.voices.store import open_store


@pytest.fixture
def server():
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def _credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "voice-keeper")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def objects_of(server, prefix="/voices", *, timeout_s=5.0, max_bytes=1 << 20, bucket=BUCKET):
    address = S3Address(f"s3://{bucket}{prefix}", endpoint=server.endpoint)
    return S3Objects(address, max_bytes, timeout_s=timeout_s)


async def test_keep_read_list_delete(server):
    store = ObjectVoiceStore(objects_of(server))
    await store.put(make_voice("anna"))
    await store.put(make_voice("anna-maria", seed=1))
    (first, second) = sorted(server.objects)
    assert first.startswith("voices/anna-maria.")
    assert second.startswith("voices/anna.")
    np.testing.assert_array_equal((await store.get("anna")).prompt_mel, make_voice().prompt_mel)
    assert [voice.voice_id for voice in await store.list()] == ["anna", "anna-maria"]
    with pytest.raises(VoiceExistsError):
        await store.put(make_voice("anna", seed=2))
    await store.put(make_voice("anna", seed=2), replace=True)
    assert len(server.objects) == 2
    np.testing.assert_array_equal((await store.get("anna")).speaker, make_voice(seed=2).speaker)
    await store.delete("anna")
    with pytest.raises(UnsupportedVoiceError):
        await store.get("anna")
    with pytest.raises(UnsupportedVoiceError):
        await store.delete("anna")
    assert set(await store.digests()) == {"anna-maria"}


async def test_long_lists_come_in_pages(server):
    server.page = 2
    objects = objects_of(server, "")
    for number in range(7):
        await objects.write(f"name{number}", b"x")
    await objects.write("other", b"x")
    assert sorted(await objects.names("")) == [*(f"name{number}" for number in range(7)), "other"]
    assert sorted(await objects.names("name")) == [f"name{number}" for number in range(7)]
    assert await objects.names("nobody") == []


async def test_what_is_gone_is_gone(server):
    objects = objects_of(server)
    with pytest.raises(FileNotFoundError):
        await objects.read("nothing")
    await objects.delete("nothing")


async def test_a_passing_failure_is_survived(server):
    objects = objects_of(server)
    await objects.write("name", b"content")
    server.failures += [500, 503]
    assert await objects.read("name") == b"content"
    assert sum(request.startswith("GET") for request in server.requests) == 3


async def test_a_store_that_is_away_is_told_and_worth_another_try(server):
    objects = objects_of(server)
    server.failures += [503] * 10
    with pytest.raises(VoiceStoreError) as caught:
        await objects.names("")
    assert caught.value.retryable


async def test_a_store_that_says_nothing_is_given_up(server):
    objects = objects_of(server, timeout_s=0.3)
    server.failures += [0] * 10
    begun = time.monotonic()
    with pytest.raises(VoiceStoreError) as caught:
        await objects.read("name")
    assert caught.value.retryable
    assert time.monotonic() - begun < 3


async def test_wrong_credentials_and_buckets_are_not_worth_another_try(server, monkeypatch):
    with pytest.raises(VoiceStoreRefusedError) as caught:
        await objects_of(server, bucket="somewhere-else").names("")
    assert not caught.value.retryable
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-else")
    with pytest.raises(VoiceStoreRefusedError):
        await objects_of(server).names("")
    with pytest.raises(VoiceStoreRefusedError):
        await objects_of(server).write("name", b"content")


async def test_size_and_hash_are_checked(server):
    store = ObjectVoiceStore(objects_of(server))
    await store.put(make_voice())
    (key,) = server.objects
    server.objects[key] = server.objects[key][:-4] + b"\0\0\0\0"
    with pytest.raises(VoiceDamagedError, match="hash"):
        await store.get("anna")
    server.objects[key] = bytes((1 << 20) + 1)
    with pytest.raises(VoiceDamagedError, match="bytes"):
        await store.get("anna")


@pytest.mark.parametrize("url", ["s3://", "s3://UPPER/x", "s3://bucket/?x", "http://bucket", "s3://b"])
def test_what_is_no_address_is_told_at_the_start(url):
    with pytest.raises(ModelLoadingError, match="address"):
        S3Objects(S3Address(url), 100)


def test_a_missing_client_is_told_at_the_start(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(s3.importlib, "import_module", missing)
    with pytest.raises(ModelLoadingError, match=r"parley\[s3\]"):
        S3Objects(S3Address("s3://bucket"), 100)


async def test_the_settings_name_the_bucket(server, tmp_path):
    environment = {"PARLEY_VOICES": f"s3://{BUCKET}/team/a", "PARLEY_VOICES_ENDPOINT": server.endpoint}
    parameters = Parameters(
        "chatterbox", {}, model_dir=tmp_path / "r" / "chatterbox", environment=environment
    )
    await open_store(parameters).put(make_voice())
    assert [key[:12] for key in server.objects] == ["team/a/anna."]
