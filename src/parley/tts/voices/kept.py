"""Voices as objects in a folder or an object store.

A voice is one object, ``<voice_id>.<sha256>.safetensors``. The name carries the hash of the
content, so that a voice and its hash are always written together, a damaged one is noticed when it
is read, and a change is noticed by looking at names alone.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from hashlib import sha256

from parley.errors import (
    TooManyVoicesError,
    UnsupportedVoiceError,
    VoiceDamagedError,
    VoiceExistsError,
)
from parley.tts.voices.base import summarise
from parley.tts.voices.messages import VoiceSummary
from parley.tts.voices.objects import Objects
from parley.tts.voices.voice import Voice, check_voice_id, read_voice, write_voice

_log = logging.getLogger(__name__)
_NAME = re.compile(r"(?P<voice_id>[a-z0-9][a-z0-9_-]{0,63})\.(?P<digest>[0-9a-f]{64})\.safetensors")
_READS_AT_ONCE = 8


class ObjectVoiceStore:
    """Voices as objects.

    Args:
        objects: where they are.
        max_voices: more are refused.
        built_in: whether they came with the weights.
    """

    def __init__(self, objects: Objects, *, max_voices: int = 1_000, built_in: bool = False) -> None:
        self._objects = objects
        self._max_voices = max_voices
        self._built_in = built_in
        self._summaries: dict[str, VoiceSummary] = {}  # of the last list, by object

    async def get(self, voice_id: str) -> Voice:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        return (await self._look_up(voice_id))[0]

    async def describe(self, voice_id: str) -> VoiceSummary:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        voice, name = await self._look_up(voice_id)
        return self._summary(voice, name)

    async def digests(self) -> dict[str, str]:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        matches = filter(None, map(_NAME.fullmatch, sorted(await self._objects.names(""))))
        return {match["voice_id"]: match["digest"] for match in matches}

    async def list(self) -> Sequence[VoiceSummary]:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        gate = asyncio.Semaphore(_READS_AT_ONCE)

        async def summary(name: str) -> VoiceSummary | None:
            if name in self._summaries:
                return self._summaries[name]
            async with gate:
                try:
                    return self._summary(await self._read(name), name)
                except FileNotFoundError:
                    return None  # deleted meanwhile
                except VoiceDamagedError as error:
                    _log.warning("left out of the list of voices: %s", error)
                    return None

        names = [object_name(*entry) for entry in sorted((await self.digests()).items())]
        found = await asyncio.gather(*map(summary, names))
        # A name stands for its content, so that the next list reads only what is new.
        self._summaries = {name: voice for name, voice in zip(names, found, strict=True) if voice is not None}
        return tuple(self._summaries.values())

    async def put(self, voice: Voice, *, replace: bool = False) -> None:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        data = write_voice(voice)
        digest = sha256(data).hexdigest()
        known = await self.digests()
        if known.get(voice.voice_id) == digest:
            return
        if voice.voice_id in known and not replace:
            raise VoiceExistsError(f"there is another voice {voice.voice_id!r} already")
        if voice.voice_id not in known and len(known) >= self._max_voices:
            raise TooManyVoicesError(f"{len(known)} voices are kept already; at most {self._max_voices}")
        # Only what was there before is taken away: two who replace a voice at the same time cannot
        # take away each other's.
        before = await self._names(voice.voice_id)
        await self._objects.write(object_name(voice.voice_id, digest), data)
        for name in before:
            await self._objects.delete(name)

    async def delete(self, voice_id: str) -> None:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        check_voice_id(voice_id)
        names = await self._names(voice_id)
        if not names:
            raise UnsupportedVoiceError(f"there is no voice {voice_id!r}")
        for name in names:
            await self._objects.delete(name)

    async def _names(self, voice_id: str) -> Sequence[str]:
        """Names of the objects of one voice; more than one only while it is being replaced."""
        return [name for name in sorted(await self._objects.names(f"{voice_id}.")) if _NAME.fullmatch(name)]

    async def _look_up(self, voice_id: str) -> tuple[Voice, str]:
        check_voice_id(voice_id)
        name = await self._find(voice_id)
        try:
            return await self._read(name), name
        except FileNotFoundError:
            # Replaced since its name was read; or deleted, which the second look tells.
            name = await self._find(voice_id)
            try:
                return await self._read(name), name
            except FileNotFoundError as error:
                raise UnsupportedVoiceError(f"there is no voice {voice_id!r} any more") from error

    def _summary(self, voice: Voice, name: str) -> VoiceSummary:
        return summarise(voice, name.split(".")[1], built_in=self._built_in)

    async def _find(self, voice_id: str) -> str:
        names = await self._names(voice_id)
        if not names:
            raise UnsupportedVoiceError(f"there is no voice {voice_id!r}")
        # Should two have replaced a voice at the same time, all readers choose the same.
        return names[-1]

    async def _read(self, name: str) -> Voice:
        voice_id, digest, _ = name.split(".")
        data = await self._objects.read(name)
        if sha256(data).hexdigest() != digest:
            raise VoiceDamagedError(f"voice {voice_id} is not what was stored: its hash differs")
        return read_voice(data, voice_id)


def object_name(voice_id: str, digest: str) -> str:
    """Name of the object that holds a voice."""
    return f"{voice_id}.{digest}.safetensors"
