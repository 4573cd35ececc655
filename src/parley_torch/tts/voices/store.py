"""The store of voices, as objects in a folder or an object store, and its cache.

A voice is one object, ``<voice_id>.<sha256>.safetensors``. The name contains the hash of the
content, so that a voice and its hash are always written together, damage is detected when a voice
is read, and a change is detected from names alone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from parley.errors import (
    NotPermittedError,
    TooManyVoicesError,
    UnsupportedVoiceError,
    VoiceDamagedError,
    VoiceExistsError,
    VoiceStoreError,
)
from parley.runtime.parameters import Parameters
from parley.runtime.weights import models_dir
from parley.tts.voice_messages import VoiceSummary
from parley_torch.tts.t3.request import TOKENS_PER_SECOND
from parley_torch.tts.voices.objects import SCHEME, FolderObjects, Objects, S3Address, S3Objects
from parley_torch.tts.voices.voice import (
    MAX_VOICE_BYTES,
    Voice,
    check_voice_id,
    read_voice,
    write_voice,
)

VOICES_VARIABLE = "PARLEY_VOICES"
ENDPOINT_VARIABLE = "PARLEY_VOICES_ENDPOINT"
_BUILT_IN = "voices"
_NAME = re.compile(r"(?P<voice_id>[a-z0-9][a-z0-9_-]{0,63})\.(?P<digest>[0-9a-f]{64})\.safetensors")
_MAX_CONCURRENT_READS = 8
_log = logging.getLogger("parley.torch")


class VoiceStore:
    """Voices as objects. Its coroutines may be called from one event loop at a time.

    Voices among the objects ``built_in`` came with the weights: they never change, and their ids are
    reserved. Of the others, more than ``max_voices`` are refused. Every method raises VoiceStoreError if
    the storage failed or was late.
    """

    def __init__(self, objects: Objects, *, built_in: Objects | None = None, max_voices: int = 1_000) -> None:
        self._objects = objects
        self._built_in = built_in
        self._max_voices = max_voices
        self._summaries: dict[str, VoiceSummary] = {}  # of the last list, by object name

    async def get(self, voice_id: str) -> Voice:
        """Read a voice.

        Raises:
            UnsupportedVoiceError: the voice does not exist.
            VoiceDamagedError: its content has changed since it was stored.
        """
        return (await self._look_up(voice_id))[0]

    async def describe(self, voice_id: str) -> VoiceSummary:
        """Summarise a voice; raises the errors of :meth:`get`."""
        voice, objects, name = await self._look_up(voice_id)
        return self._summary(voice, objects, name)

    async def digests(self) -> dict[str, str]:
        """The SHA-256 of every voice's file by voice id; reads no file."""
        return await _digests(self._objects) | await _digests(self._built_in)

    async def list(self) -> Sequence[VoiceSummary]:
        """All voices by id, built-in ones first; unreadable ones are logged and left out."""
        gate = asyncio.Semaphore(_MAX_CONCURRENT_READS)

        async def summary(objects: Objects, name: str) -> VoiceSummary | None:
            if name in self._summaries:
                return self._summaries[name]
            async with gate:
                try:
                    return self._summary(await _read(objects, name), objects, name)
                except FileNotFoundError:
                    return None  # deleted meanwhile
                except VoiceDamagedError as error:
                    _log.warning("left out of the list of voices: %s", error)
                    return None

        names: dict[str, Objects] = {}
        hidden: dict[str, str] = {}
        for objects in filter(None, (self._built_in, self._objects)):
            digests = await _digests(objects)
            names |= {object_name(*entry): objects for entry in digests.items() if entry[0] not in hidden}
            hidden = digests
        found = await asyncio.gather(*(summary(objects, name) for name, objects in names.items()))
        # A name stands for its content, so that the next list reads only what is new.
        self._summaries = {name: voice for name, voice in zip(names, found, strict=True) if voice is not None}
        return tuple(self._summaries.values())

    async def put(self, voice: Voice, *, replace: bool = False) -> None:
        """Store a voice. Storing the same voice again changes nothing.

        Raises:
            UnsupportedVoiceError: its id is not usable.
            VoiceDamagedError: a tensor has a wrong shape, type or value.
            VoiceExistsError: another voice has its id, and ``replace`` is not set.
            TooManyVoicesError: the store is full.
            NotPermittedError: it came with the weights.
        """
        await self._check_own(voice.voice_id)
        data = write_voice(voice)
        digest = sha256(data).hexdigest()
        known = await _digests(self._objects)
        if known.get(voice.voice_id) == digest:
            return
        if voice.voice_id in known and not replace:
            raise VoiceExistsError(f"there is another voice {voice.voice_id!r} already")
        if voice.voice_id not in known and len(known) >= self._max_voices:
            raise TooManyVoicesError(f"{len(known)} voices are stored already; at most {self._max_voices}")
        # Only objects that existed before are deleted: two concurrent replacements cannot delete each
        # other's.
        before = await _names(self._objects, voice.voice_id)
        await self._objects.write(object_name(voice.voice_id, digest), data)
        for name in before:
            await self._objects.delete(name)

    async def delete(self, voice_id: str) -> None:
        """Delete a voice.

        Raises:
            UnsupportedVoiceError: the voice does not exist.
            NotPermittedError: it came with the weights.
        """
        check_voice_id(voice_id)
        await self._check_own(voice_id)
        names = await _names(self._objects, voice_id)
        if not names:
            raise UnsupportedVoiceError(f"there is no voice {voice_id!r}")
        for name in names:
            await self._objects.delete(name)

    async def _check_own(self, voice_id: str) -> None:
        if voice_id in await _digests(self._built_in):
            raise NotPermittedError(f"voice {voice_id!r} came with the weights and cannot be changed")

    async def _look_up(self, voice_id: str) -> tuple[Voice, Objects, str]:
        check_voice_id(voice_id)
        objects, name = await self._find(voice_id)
        try:
            return await _read(objects, name), objects, name
        except FileNotFoundError:
            # Replaced or deleted since its name was read.
            objects, name = await self._find(voice_id)
            try:
                return await _read(objects, name), objects, name
            except FileNotFoundError as error:
                raise UnsupportedVoiceError(f"there is no voice {voice_id!r} any more") from error

    async def _find(self, voice_id: str) -> tuple[Objects, str]:
        for objects in filter(None, (self._built_in, self._objects)):
            if names := await _names(objects, voice_id):
                # After two concurrent replacements all readers choose the same object.
                return objects, names[-1]
        raise UnsupportedVoiceError(f"there is no voice {voice_id!r}")

    def _summary(self, voice: Voice, objects: Objects, name: str) -> VoiceSummary:
        return VoiceSummary(
            voice_id=voice.voice_id,
            digest=name.split(".")[1],
            prompt_s=len(voice.prompt_tokens) / TOKENS_PER_SECOND,
            built_in=objects is self._built_in,
            details=voice.details,
        )


async def _digests(objects: Objects | None) -> dict[str, str]:
    """Digests by voice id, in the order of the ids."""
    names = () if objects is None else await objects.names("")
    matches = filter(None, map(_NAME.fullmatch, sorted(names)))
    digests = {match["voice_id"]: match["digest"] for match in matches}
    return dict(sorted(digests.items()))


async def _names(objects: Objects, voice_id: str) -> Sequence[str]:
    """Names of the objects of one voice; more than one only while it is being replaced."""
    return [name for name in sorted(await objects.names(f"{voice_id}.")) if _NAME.fullmatch(name)]


async def _read(objects: Objects, name: str) -> Voice:
    voice_id, digest, _ = name.split(".")
    data = await objects.read(name)
    if sha256(data).hexdigest() != digest:
        raise VoiceDamagedError(f"voice {voice_id} has changed since it was stored: its hash differs")
    return read_voice(data, voice_id)


def object_name(voice_id: str, digest: str) -> str:
    """Name of the object that holds a voice."""
    return f"{voice_id}.{digest}.safetensors"


@dataclass
class _Entry:
    voice: Voice
    read_at: float


class VoiceCache:
    """Reads the voices of a store; recently used ones stay in memory.

    Concurrent calls share one read of a voice. A change in the store takes effect after ``refresh_s``;
    while the store is unavailable, the voice in memory is still returned.

    Beyond ``max_voices``, the least recently used one leaves the memory.
    """

    def __init__(
        self,
        store: VoiceStore,
        *,
        max_voices: int = 64,
        refresh_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._max_voices = max_voices
        self._refresh_s = refresh_s
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._reads: dict[str, asyncio.Task[Voice]] = {}  # under way, by voice

    async def get(self, voice_id: str) -> Voice:
        """Read a voice; see :meth:`VoiceStore.get`."""
        entry = self._entries.get(voice_id)
        if entry is not None and self._clock() - entry.read_at < self._refresh_s:
            self._entries.move_to_end(voice_id)
            return entry.voice
        read = self._reads.get(voice_id)
        if read is None:
            read = asyncio.create_task(self._read(voice_id))
            self._reads[voice_id] = read
            read.add_done_callback(lambda done: self._forget_read(voice_id, done))
        # A cancelled caller does not cancel the read for the others.
        return await asyncio.shield(read)

    async def _read(self, voice_id: str) -> Voice:
        known = self._entries.get(voice_id)
        try:
            voice = await self._store.get(voice_id)
        except VoiceStoreError as error:
            if known is None:
                raise
            _log.warning("the cached voice %s is used: %s", voice_id, error)
            voice = known.voice
        except UnsupportedVoiceError:
            self._entries.pop(voice_id, None)
            raise
        self._entries[voice_id] = _Entry(voice, self._clock())
        self._entries.move_to_end(voice_id)
        while len(self._entries) > self._max_voices:
            self._entries.popitem(last=False)
        return voice

    def _forget_read(self, voice_id: str, done: asyncio.Task[Voice]) -> None:
        del self._reads[voice_id]
        if not done.cancelled():
            done.exception()  # marks it as retrieved: every caller may have been cancelled


def open_store(parameters: Parameters, weights: Path | None = None) -> VoiceStore:
    """The store of a model's settings.

    The store is named by the environment variable ``PARLEY_VOICES`` (for all models of a server),
    else by the parameter ``voices``, else it is the folder ``voices`` in
    :func:`parley.runtime.weights.models_dir`. A relative name is a folder in there, and
    ``s3://BUCKET/PREFIX`` is a place in an S3-compatible object store, whose address is
    ``PARLEY_VOICES_ENDPOINT`` if it is not Amazon's (:class:`parley_torch.tts.voices.objects.S3Objects`).

    Parameters of the model:
        ``voices``, ``voices_endpoint``: see above.
        ``voices_region``: of the bucket.
        ``voices_timeout_s``: of each call to the object store.
        ``max_voices``: in the store.

    Voices in the folder ``voices`` of the checkpoint's folder ``weights`` are built in.

    Raises:
        ModelLoadingError: a setting is not usable.
    """
    built_in = None if weights is None else FolderObjects(weights / _BUILT_IN, MAX_VOICE_BYTES)
    max_voices = parameters.integer("max_voices", 1_000, minimum=1)
    return VoiceStore(_objects(parameters), built_in=built_in, max_voices=max_voices)


def open_cache(parameters: Parameters, weights: Path | None = None) -> VoiceCache:
    """:func:`open_store` behind a cache.

    Further parameters of the model:
        ``cached_voices``: in memory.
        ``voice_refresh_s``: seconds until a changed voice takes effect.
    """
    return VoiceCache(
        open_store(parameters, weights),
        max_voices=parameters.integer("cached_voices", 64, minimum=1),
        refresh_s=parameters.number("voice_refresh_s", 30.0),
    )


def _objects(parameters: Parameters) -> Objects:
    name = parameters.environment.get(VOICES_VARIABLE) or parameters.text("voices", "voices")
    if not name.startswith(SCHEME):
        return FolderObjects(models_dir(parameters) / name, MAX_VOICE_BYTES)
    address = S3Address(
        name,
        endpoint=parameters.environment.get(ENDPOINT_VARIABLE) or parameters.text("voices_endpoint", ""),
        region=parameters.text("voices_region", ""),
    )
    timeout_s = parameters.number("voices_timeout_s", 10.0, minimum=0.1)
    return S3Objects(address, MAX_VOICE_BYTES, timeout_s=timeout_s)
