import asyncio
from pathlib import Path

import numpy as np
import pytest
from a_voice import make_voice

from parley.errors import (
    NotPermittedError,
    TooManyVoicesError,
    UnsupportedVoiceError,
    VoiceDamagedError,
    VoiceExistsError,
    VoiceStoreError,
)
from parley.runtime.parameters import Parameters
from parley.tts.voices.cache import CachedStore
from parley.tts.voices.kept import ObjectVoiceStore
from parley.tts.voices.objects import FolderObjects
from parley.tts.voices.store import LayeredStore, open_store


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "voices"


@pytest.fixture
def store(folder):
    return ObjectVoiceStore(FolderObjects(folder, 1 << 20), max_voices=3)


def same(one, other):
    return np.array_equal(one.speaker, other.speaker) and np.array_equal(one.prompt_mel, other.prompt_mel)


async def test_keep_read_list_delete(store, folder):
    assert list(await store.list()) == []
    await store.put(make_voice("bert", seed=1))
    await store.put(make_voice("anna", languages=["en"]))
    assert same(await store.get("anna"), make_voice())
    anna, bert = await store.list()
    assert (anna.voice_id, anna.details.languages, anna.prompt_s) == ("anna", ["en"], 2.0)
    assert bert.voice_id == "bert"
    assert await store.digests() == {"anna": anna.digest, "bert": bert.digest}
    await store.delete("anna")
    with pytest.raises(UnsupportedVoiceError):
        await store.get("anna")
    with pytest.raises(UnsupportedVoiceError):
        await store.delete("anna")
    assert [path.name.split(".")[0] for path in folder.iterdir()] == ["bert"]


async def test_another_voice_does_not_take_its_place_unasked(store, folder):
    await store.put(make_voice())
    await store.put(make_voice())
    with pytest.raises(VoiceExistsError):
        await store.put(make_voice(seed=1))
    assert same(await store.get("anna"), make_voice())
    await store.put(make_voice(seed=1), replace=True)
    assert same(await store.get("anna"), make_voice(seed=1))
    assert len(list(folder.iterdir())) == 1


async def test_the_store_is_bounded(store):
    for name in ("anna", "bert", "carl"):
        await store.put(make_voice(name))
    with pytest.raises(TooManyVoicesError):
        await store.put(make_voice("dora"))
    await store.put(make_voice("carl", seed=1), replace=True)
    await store.delete("anna")
    await store.put(make_voice("dora"))


async def test_damage_is_noticed(store, folder):
    await store.put(make_voice("anna"))
    await store.put(make_voice("bert"))
    assert (await store.describe("bert")).digest == (await store.digests())["bert"]
    (file,) = folder.glob("anna.*")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(VoiceDamagedError, match="hash"):
        await store.get("anna")
    assert [voice.voice_id for voice in await store.list()] == ["bert"]
    file.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(VoiceDamagedError, match="more than"):
        await store.get("anna")


async def test_the_second_list_reads_only_what_is_new(folder):
    class Counted(FolderObjects):
        async def read(self, name):
            reads.append(name.partition(".")[0])
            return await super().read(name)

    reads = []
    store = ObjectVoiceStore(Counted(folder, 1 << 20))
    await store.put(make_voice("anna"))
    await store.put(make_voice("bert"))
    first = await store.list()
    assert reads == ["anna", "bert"]
    await store.put(make_voice("bert", seed=1), replace=True)
    second = await store.list()
    assert reads == ["anna", "bert", "bert"]
    assert second[0] == first[0]
    assert second[1].digest != first[1].digest


async def test_what_is_not_a_voice_is_left_alone(store, folder):
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
    store = ObjectVoiceStore(objects)
    with pytest.raises(UnsupportedVoiceError):
        await store.get("../secret")
    with pytest.raises(UnsupportedVoiceError):
        await store.delete("../secret")


async def test_a_folder_that_cannot_be_used_is_told(tmp_path):
    (tmp_path / "file").touch()
    store = ObjectVoiceStore(FolderObjects(tmp_path / "file", 1 << 20))
    with pytest.raises(VoiceStoreError):
        await store.get("anna")
    with pytest.raises(VoiceStoreError):
        await store.put(make_voice())


async def test_a_failed_write_leaves_nothing(store, folder, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    await store.put(make_voice())
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(VoiceStoreError, match="disk full"):
        await store.put(make_voice(seed=1), replace=True)
    monkeypatch.undo()
    assert same(await store.get("anna"), make_voice())
    assert len(list(folder.iterdir())) == 1


async def test_a_voice_replaced_between_two_looks_is_found(folder):
    class Replaced(FolderObjects):
        async def read(self, name):
            if not reads:
                reads.append(name)
                await store.put(make_voice(seed=1), replace=True)
            return await super().read(name)

    reads = []
    store = ObjectVoiceStore(Replaced(folder, 1 << 20))
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

    async def put(self, voice, *, replace=False):
        self.voices[voice.voice_id] = voice

    async def delete(self, voice_id):
        del self.voices[voice_id]


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
    return CachedStore(counted, max_voices=2, refresh_s=10.0, clock=lambda: clock[0])


async def test_many_who_ask_at_once_cause_one_read(cached, counted):
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


async def test_the_cache_forgets_what_was_not_used_for_longest(cached, counted):
    for name in ("anna", "bert", "anna", "carl", "anna"):
        await cached.get(name)
    assert counted.reads == ["anna", "bert", "carl"]
    await cached.get("bert")
    assert counted.reads == ["anna", "bert", "carl", "bert"]


async def test_a_change_is_noticed_after_a_while(cached, counted, clock):
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


async def test_own_changes_are_seen_at_once(cached):
    await cached.get("anna")
    changed = make_voice(seed=1)
    await cached.put(changed, replace=True)
    assert await cached.get("anna") is changed
    await cached.delete("anna")
    with pytest.raises(UnsupportedVoiceError):
        await cached.get("anna")


async def test_known_voices_outlast_the_store(cached, counted, clock):
    voice = await cached.get("anna")
    counted.error = VoiceStoreError("away")
    clock[0] = 60.0
    assert await cached.get("anna") is voice
    with pytest.raises(VoiceStoreError):
        await cached.get("bert")
    counted.error = None
    assert (await cached.get("bert")).voice_id == "bert"


async def test_voices_of_the_weights_cannot_be_changed(tmp_path):
    built_in = ObjectVoiceStore(FolderObjects(tmp_path / "built-in", 1 << 20), built_in=True)
    await built_in.put(make_voice("default"))
    store = LayeredStore(built_in, ObjectVoiceStore(FolderObjects(tmp_path / "own", 1 << 20)))
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


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "models/mine"),
        ({"PARLEY_CHATTERBOX_VOICES": "theirs"}, "models/theirs"),
        ({"PARLEY_VOICES": "ours", "PARLEY_CHATTERBOX_VOICES": "theirs"}, "models/ours"),
    ],
)
async def test_the_settings_name_the_store(tmp_path, environment, expected):
    repository = tmp_path / "model_repository" / "chatterbox"
    parameters = Parameters("chatterbox", {"voices": "mine"}, model_dir=repository, environment=environment)
    store = open_store(parameters, tmp_path / "weights")
    await store.put(make_voice())
    assert [path.name[:5] for path in (tmp_path / expected).iterdir()] == ["anna."]
    await ObjectVoiceStore(FolderObjects(tmp_path / "weights" / "voices", 1 << 20)).put(make_voice("default"))
    assert (await store.get("default")).voice_id == "default"
