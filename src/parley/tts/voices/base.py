"""What every store of voices does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from parley.tts.voices.messages import VoiceSummary
from parley.tts.voices.voice import TOKENS_PER_SECOND, Voice


class VoiceStore(Protocol):
    """Keeps voices. Its coroutines may be called from one event loop at a time."""

    async def get(self, voice_id: str) -> Voice:
        """Read a voice.

        Raises:
            UnsupportedVoiceError: there is no such voice.
            VoiceDamagedError: it is not what was stored.
            VoiceStoreError: the store failed or was late.
        """
        ...

    async def describe(self, voice_id: str) -> VoiceSummary:
        """What is to be said of a voice; raises what :meth:`get` raises."""
        ...

    async def digests(self) -> dict[str, str]:
        """The SHA-256 of every voice's file by the voice's id; reads no voice.

        Raises:
            VoiceStoreError: the store failed or was late.
        """
        ...

    async def list(self) -> Sequence[VoiceSummary]:
        """All voices by id; those that cannot be read are left out, and logged.

        Raises:
            VoiceStoreError: the store failed or was late.
        """
        ...

    async def put(self, voice: Voice, *, replace: bool = False) -> None:
        """Keep a voice. Keeping the same again changes nothing.

        Raises:
            UnsupportedVoiceError: its id is not usable.
            VoiceDamagedError: it does not hold what a voice must hold.
            VoiceExistsError: another voice has its id, and ``replace`` is not set.
            TooManyVoicesError: the store is full.
            NotPermittedError: it came with the weights.
            VoiceStoreError: the store failed or was late.
        """
        ...

    async def delete(self, voice_id: str) -> None:
        """Forget a voice.

        Raises:
            UnsupportedVoiceError: there is no such voice.
            NotPermittedError: it came with the weights.
            VoiceStoreError: the store failed or was late.
        """
        ...


def summarise(voice: Voice, digest: str, *, built_in: bool = False) -> VoiceSummary:
    """A voice as it stands in a list."""
    return VoiceSummary(
        voice_id=voice.voice_id,
        digest=digest,
        prompt_s=len(voice.prompt_tokens) / TOKENS_PER_SECOND,
        built_in=built_in,
        details=voice.details,
    )
