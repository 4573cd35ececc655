"""The store of voices in a folder and in a bucket, and the cache before it."""

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest
from fake_s3 import BUCKET, serving
from voice_samples import make_voice

from parley.errors import (
    ModelLoadingError,
    NotPermittedError,
    TooManyVoicesError,
    UnsupportedVoiceError,
    VoiceDamagedError,
    VoiceExistsError,
    VoiceStoreError,
    VoiceStoreRefusedError,
)
from parley.runtime.parameters import Parameters
from parley_torch.tts.voices import objects as object_storage
from parley_torch.tts.voices.objects import FolderObjects, S3Address, S3Objects
from parley_torch.tts.voices.store import VoiceCache, VoiceStore, open_store

MAX_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def _credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "voice-keeper")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server():
    with serving() as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "voices"


class Files:
    """Contents of the files of a folder, as the dictionary of a bucket's objects."""

    def __init__(self, folder):
        self._folder = folder

    def __iter__(self):
        return (path.name for path in self._folder.iterdir())

    def __getitem__(self, name):
        return (self._folder / name).read_bytes()

    def __setitem__(self, name, content):
        (self._folder / name).write_bytes(content)


@pytest.fixture(params=["folder", "bucket"])
def place(request, folder):
    """Objects, and their contents by name."""
    if request.param == "folder":
        return FolderObjects(folder, MAX_BYTES), Files(folder)
    server = request.getfixturevalue("server")
    return objects_of(server, ""), server.objects


@pytest.fixture
def store(place):
    return VoiceStore(place[0], max_voices=3)


def same(one, other):
    return np.array_equal(one.speaker, other.speaker) and np.array_equal(one.prompt_mel, other.prompt_mel)


async def test_put_get_list_delete(store, place):
    assert list(await store.list()) == []
    await store.put(make_voice("anna-maria", seed=1))
    await store.put(make_voice("anna", languages=["en"]))
    assert sorted(name.partition(".")[0] for name in place[1]) == ["anna", "anna-maria"]
    assert same(await store.get("anna"), make_voice())
    anna, maria = await store.list()
    assert (anna.voice_id, anna.details.languages, anna.prompt_s) == ("anna", ["en"], 2.0)
    assert maria.voice_id == "anna-maria"
    assert await store.digests() == {"anna": anna.digest, "anna-maria": maria.digest}
    assert await store.describe("anna") == anna
    await store.delete("anna")
    for change in (store.get, store.delete):
        with pytest.raises(UnsupportedVoiceError):
            await change("anna")
    assert [name.partition(".")[0] for name in place[1]] == ["anna-maria"]


async def test_another_voice_needs_permission_to_replace(store, place):
    await store.put(make_voice())
    await store.put(make_voice())
    with pytest.raises(VoiceExistsError):
        await store.put(make_voice(seed=1))
    assert same(await store.get("anna"), make_voice())
    await store.put(make_voice(seed=1), replace=True)
    assert same(await store.get("anna"), make_voice(seed=1))
    assert len(list(place[1])) == 1


async def test_the_store_is_bounded(store):
    for name in ("anna", "bert", "carl"):
        await store.put(make_voice(name))
    with pytest.raises(TooManyVoicesError):
        await store.put(make_voice("dora"))
    await store.put(make_voice("carl", seed=1), replace=True)
    await store.delete("anna")
    await store.put(make_voice("dora"))


async def test_damage_is_detected(store, place):
    await store.put(make_voice("anna"))
    await store.put(make_voice("bert"))
    contents = place[1]
    name = next(name for name in contents if name.startswith("anna"))
    data = bytearray(contents[name])
    data[-1] ^= 1
    contents[name] = bytes(data)
    with pytest.raises(VoiceDamagedError, match="hash"):
        await store.get("anna")
    assert [voice.voice_id for voice in await store.list()] == ["bert"]
    contents[name] = bytes(MAX_BYTES + 1)
    with pytest.raises(VoiceDamagedError, match="bytes"):
        await store.get("anna")


async def test_the_second_list_reads_only_what_is_new(folder):
    class Counted(FolderObjects):
        async def read(self, name):
            reads.append(name.partition(".")[0])
            return await super().read(name)

    reads = []
    store = VoiceStore(Counted(folder, MAX_BYTES))
    await store.put(make_voice("anna"))
    await store.put(make_voice("bert"))
    first = await store.list()
    assert reads == ["anna", "bert"]
    await store.put(make_voice("bert", seed=1), replace=True)
    second = await store.list()
    assert reads == ["anna", "bert", "bert"]
    assert second[0] == first[0]
    assert second[1].digest != first[1].digest


async def test_other_files_stay(folder):
    store = VoiceStore(FolderObjects(folder, MAX_BYTES))
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / ".new-x").write_text("unfinished")
    assert list(await store.list()) == []
    await store.put(make_voice())
    assert (folder / "notes.txt").exists()


async def test_no_name_leads_out_of_the_folder(folder, tmp_path):
    secret = tmp_path / "secret.safetensors"
    secret.write_bytes(b"secret")
    objects = FolderObjects(folder, 100)
    for name in ("../secret.safetensors", str(secret), ".", "..", ".new-x", ""):
        with pytest.raises(ValueError, match="plain"):
            await objects.read(name)
    store = VoiceStore(objects)
    with pytest.raises(UnsupportedVoiceError):
        await store.get("../secret")
    with pytest.raises(UnsupportedVoiceError):
        await store.delete("../secret")


async def test_an_unusable_folder_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    store = VoiceStore(FolderObjects(tmp_path / "file", MAX_BYTES))
    with pytest.raises(VoiceStoreError):
        await store.get("anna")
    with pytest.raises(VoiceStoreError):
        await store.put(make_voice())


async def test_a_failed_write_leaves_nothing(folder, monkeypatch):
    store = VoiceStore(FolderObjects(folder, MAX_BYTES))

    def fail(*_):
        raise OSError("disk full")

    await store.put(make_voice())
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(VoiceStoreError, match="disk full"):
        await store.put(make_voice(seed=1), replace=True)
    monkeypatch.undo()
    assert same(await store.get("anna"), make_voice())
    assert len(list(folder.iterdir())) == 1


async def test_a_voice_replaced_during_a_read_is_found(folder):
    class Replaced(FolderObjects):
        async def read(self, name):
            if not reads:
                reads.append(name)
                await store.put(make_voice(seed=1), replace=True)
            return await super().read(name)

    reads = []
    store = VoiceStore(Replaced(folder, MAX_BYTES))
    await store.put(make_voice())
    assert same(await store.get("anna"), make_voice(seed=1))


class CountedStore:
    def __init__(self):
        self.voices = {}
        self.reads = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error = None

    async def get(self, voice_id):
        self.reads.append(voice_id)
        await self.gate.wait()
        if self.error:
            raise self.error
        if voice_id not in self.voices:
            raise UnsupportedVoiceError(voice_id)
        return self.voices[voice_id]


@pytest.fixture
def counted():
    store = CountedStore()
    store.voices = {name: make_voice(name) for name in ("anna", "bert", "carl")}
    return store


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def cached(counted, clock):
    return VoiceCache(counted, max_voices=2, refresh_s=10.0, clock=lambda: clock[0])


async def test_concurrent_calls_share_one_read(cached, counted):
    counted.gate.clear()
    waiting = [asyncio.create_task(cached.get("anna")) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    counted.gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert all(voice is counted.voices["anna"] for voice in results[1:])
    assert counted.reads == ["anna"]
    await cached.get("anna")
    assert counted.reads == ["anna"]


async def test_the_least_recently_used_voice_leaves_the_cache(cached, counted):
    for name in ("anna", "bert", "anna", "carl", "anna"):
        await cached.get(name)
    assert counted.reads == ["anna", "bert", "carl"]
    await cached.get("bert")
    assert counted.reads == ["anna", "bert", "carl", "bert"]


async def test_a_change_takes_effect_after_the_refresh_time(cached, counted, clock):
    await cached.get("anna")
    counted.voices["anna"] = changed = make_voice(seed=1)
    clock[0] = 9.0
    assert await cached.get("anna") is not changed
    clock[0] = 10.0
    assert await cached.get("anna") is changed
    del counted.voices["anna"]
    clock[0] = 21.0
    with pytest.raises(UnsupportedVoiceError):
        await cached.get("anna")


async def test_cached_voices_outlast_the_store(cached, counted, clock):
    voice = await cached.get("anna")
    counted.error = VoiceStoreError("away")
    clock[0] = 60.0
    assert await cached.get("anna") is voice
    with pytest.raises(VoiceStoreError):
        await cached.get("bert")
    counted.error = None
    assert (await cached.get("bert")).voice_id == "bert"


async def test_voices_of_the_weights_cannot_be_changed(tmp_path):
    built_in = FolderObjects(tmp_path / "built-in", MAX_BYTES)
    await VoiceStore(built_in).put(make_voice("default"))
    own = FolderObjects(tmp_path / "own", MAX_BYTES)
    await VoiceStore(own).put(make_voice("default", seed=5))  # of an older release without it
    store = VoiceStore(own, built_in=built_in)
    await store.put(make_voice("anna", seed=1))
    assert [(voice.voice_id, voice.built_in) for voice in await store.list()] == [
        ("default", True),
        ("anna", False),
    ]
    assert same(await store.get("default"), make_voice())
    assert same(await store.get("anna"), make_voice(seed=1))
    assert set(await store.digests()) == {"default", "anna"}
    for change in (store.put(make_voice("default", seed=2), replace=True), store.delete("default")):
        with pytest.raises(NotPermittedError):
            await change


def objects_of(server, prefix="/voices", *, timeout_s=5.0, max_bytes=MAX_BYTES, bucket=BUCKET):
    address = S3Address(f"s3://{bucket}{prefix}", endpoint=server.endpoint)
    return S3Objects(address, max_bytes, timeout_s=timeout_s)


async def test_long_lists_come_in_pages(server):
    server.page = 2
    objects = objects_of(server, "")
    for number in range(7):
        await objects.write(f"name{number}", b"x")
    await objects.write("other", b"x")
    assert sorted(await objects.names("")) == [*(f"name{number}" for number in range(7)), "other"]
    assert sorted(await objects.names("name")) == [f"name{number}" for number in range(7)]
    assert await objects.names("missing") == []


async def test_missing_objects(server):
    objects = objects_of(server)
    with pytest.raises(FileNotFoundError):
        await objects.read("nothing")
    await objects.delete("nothing")


async def test_transient_failures_are_retried(server):
    objects = objects_of(server)
    await objects.write("name", b"content")
    server.failures += [500, 503]
    assert await objects.read("name") == b"content"
    assert sum(request.startswith("GET") for request in server.requests) == 3


async def test_an_unavailable_store_is_a_retryable_error(server):
    server.failures += [503] * 10
    with pytest.raises(VoiceStoreError) as caught:
        await objects_of(server).names("")
    assert caught.value.retryable


async def test_a_silent_store_times_out(server):
    objects = objects_of(server, timeout_s=0.3)
    server.failures += [0] * 10
    begun = time.monotonic()
    with pytest.raises(VoiceStoreError) as caught:
        await objects.read("name")
    assert caught.value.retryable
    assert time.monotonic() - begun < 3


async def test_wrong_credentials_and_buckets_are_not_retryable(server, monkeypatch):
    with pytest.raises(VoiceStoreRefusedError) as caught:
        await objects_of(server, bucket="somewhere-else").names("")
    assert not caught.value.retryable
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another-key")
    with pytest.raises(VoiceStoreRefusedError):
        await objects_of(server).names("")
    with pytest.raises(VoiceStoreRefusedError):
        await objects_of(server).write("name", b"content")


@pytest.mark.parametrize("url", ["s3://", "s3://UPPER/x", "s3://bucket/?x", "http://bucket", "s3://b"])
def test_a_wrong_address_is_refused_at_the_start(url):
    with pytest.raises(ModelLoadingError, match="address"):
        S3Objects(S3Address(url), 100)


def test_a_missing_client_is_named_at_the_start(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(object_storage.importlib, "import_module", missing)
    with pytest.raises(ModelLoadingError, match=r"pip install '\.\[s3\]'"):
        S3Objects(S3Address("s3://bucket"), 100)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "models/mine"),
        ({"PARLEY_CHATTERBOX_VOICES": "theirs"}, "models/theirs"),
        ({"PARLEY_VOICES": "ours", "PARLEY_CHATTERBOX_VOICES": "theirs"}, "models/ours"),
    ],
)
async def test_the_settings_name_the_folder(tmp_path, environment, expected):
    repository = tmp_path / "model_repository" / "chatterbox"
    parameters = Parameters("chatterbox", {"voices": "mine"}, model_dir=repository, environment=environment)
    store = open_store(parameters, tmp_path / "weights")
    await store.put(make_voice())
    assert [path.name[:5] for path in (tmp_path / expected).iterdir()] == ["anna."]
    await VoiceStore(FolderObjects(tmp_path / "weights" / "voices", MAX_BYTES)).put(make_voice("default"))
    assert (await store.get("default")).voice_id == "default"


async def test_the_settings_name_the_bucket(server, tmp_path):
    environment = {"PARLEY_VOICES": f"s3://{BUCKET}/team/a", "PARLEY_VOICES_ENDPOINT": server.endpoint}
    parameters = Parameters(
        "chatterbox", {}, model_dir=tmp_path / "r" / "chatterbox", environment=environment
    )
    await open_store(parameters).put(make_voice())
    assert [key[:12] for key in server.objects] == ["team/a/anna."]
