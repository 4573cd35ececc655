"""Keeps voices that are in use in memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parley.errors import UnsupportedVoiceError, VoiceStoreError
from parley.tts.voices.base import VoiceStore
from parley.tts.voices.messages import VoiceSummary
from parley.tts.voices.voice import Voice

_log = logging.getLogger(__name__)


@dataclass
class _Entry:
    voice: Voice
    looked_at: float


class CachedStore:
    """A store whose voices stay in memory.

    However many ask for a voice at once, it is read once. A voice that changed in the store is
    noticed after ``refresh_s``; while the store is away, what is in memory is still given out.

    Args:
        store: where the voices are.
        max_voices: in memory; the one that was not used for longest goes first.
        refresh_s: seconds for which a voice is given out without a look at the store.
        clock: seconds that never go back.
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
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        entry = self._entries.get(voice_id)
        if entry is not None and self._clock() - entry.looked_at < self._refresh_s:
            self._entries.move_to_end(voice_id)
            return entry.voice
        read = self._reads.get(voice_id)
        if read is None:
            read = asyncio.create_task(self._read(voice_id))
            self._reads[voice_id] = read
            read.add_done_callback(lambda done: self._forget_read(voice_id, done))
        # One who stops waiting does not end the read for the others.
        return await asyncio.shield(read)

    async def describe(self, voice_id: str) -> VoiceSummary:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        return await self._store.describe(voice_id)

    async def digests(self) -> dict[str, str]:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        return await self._store.digests()

    async def list(self) -> Sequence[VoiceSummary]:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        return await self._store.list()

    async def put(self, voice: Voice, *, replace: bool = False) -> None:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        await self._store.put(voice, replace=replace)
        self._entries.pop(voice.voice_id, None)

    async def delete(self, voice_id: str) -> None:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        await self._store.delete(voice_id)
        self._entries.pop(voice_id, None)

    async def _read(self, voice_id: str) -> Voice:
        known = self._entries.get(voice_id)
        try:
            voice = await self._store.get(voice_id)
        except VoiceStoreError as error:
            if known is None:
                raise
            _log.warning("voice %s is used as it was: %s", voice_id, error)
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
            done.exception()  # raised to all who wait; if none does any more, nobody misses it
