"""Voices that came with the weights, beside those that were enrolled."""

from __future__ import annotations

from collections.abc import Sequence

from parley.errors import NotPermittedError
from parley.tts.voices.base import VoiceStore
from parley.tts.voices.messages import VoiceSummary
from parley.tts.voices.voice import Voice


class LayeredStore:
    """Two stores as one; only the second is ever changed.

    Args:
        built_in: voices that came with the weights; nobody else can take their ids.
        own: all others.
    """

    def __init__(self, built_in: VoiceStore, own: VoiceStore) -> None:
        self._built_in = built_in
        self._own = own

    async def get(self, voice_id: str) -> Voice:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        return await (await self._holder(voice_id)).get(voice_id)

    async def describe(self, voice_id: str) -> VoiceSummary:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        return await (await self._holder(voice_id)).describe(voice_id)

    async def digests(self) -> dict[str, str]:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        return await self._own.digests() | await self._built_in.digests()

    async def list(self) -> Sequence[VoiceSummary]:
        """See :class:`parley.tts.voices.base.VoiceStore`; those that came with the weights first."""
        built_in = await self._built_in.list()
        hidden = {voice.voice_id for voice in built_in}
        return [*built_in, *(voice for voice in await self._own.list() if voice.voice_id not in hidden)]

    async def put(self, voice: Voice, *, replace: bool = False) -> None:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        await self._check(voice.voice_id)
        await self._own.put(voice, replace=replace)

    async def delete(self, voice_id: str) -> None:
        """See :class:`parley.tts.voices.base.VoiceStore`."""
        await self._check(voice_id)
        await self._own.delete(voice_id)

    async def _holder(self, voice_id: str) -> VoiceStore:
        return self._built_in if voice_id in await self._built_in.digests() else self._own

    async def _check(self, voice_id: str) -> None:
        if voice_id in await self._built_in.digests():
            raise NotPermittedError(f"voice {voice_id!r} came with the weights and cannot be changed")
