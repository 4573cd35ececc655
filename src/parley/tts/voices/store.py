"""The store of voices that a model's settings name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parley.errors import NotPermittedError
from parley.runtime.parameters import Parameters
from parley.runtime.weights import models_dir
from parley.tts.voices.base import VoiceStore
from parley.tts.voices.cache import CachedStore
from parley.tts.voices.kept import ObjectVoiceStore
from parley.tts.voices.messages import VoiceSummary
from parley.tts.voices.objects import FolderObjects, Objects
from parley.tts.voices.s3 import SCHEME, S3Address, S3Objects
from parley.tts.voices.voice import MAX_VOICE_BYTES, Voice


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


__all__ = ["ENDPOINT_VARIABLE", "VOICES_VARIABLE", "VoiceStore", "open_store"]

VOICES_VARIABLE = "PARLEY_VOICES"
ENDPOINT_VARIABLE = "PARLEY_VOICES_ENDPOINT"
_BUILT_IN = "voices"


def open_store(parameters: Parameters, weights: Path | None = None) -> VoiceStore:
    """The store that a model's settings name, behind a cache.

    The store is named by the environment variable ``PARLEY_VOICES`` (for all models of a server),
    else by the parameter ``voices``, else it is the folder ``voices`` in
    :func:`parley.runtime.weights.models_dir`. A relative name is a folder in there, and
    ``s3://BUCKET/PREFIX`` is a place in an S3-compatible object store
    (:mod:`parley.tts.voices.s3`); ``PARLEY_VOICES_ENDPOINT`` says where, if it is not Amazon's.

    Parameters of the model:
        ``voices``, ``voices_endpoint``: see above.
        ``voices_region``: of the bucket.
        ``voices_timeout_s``: of each call to the object store.
        ``max_voices``: that the store takes.
        ``cached_voices``: in memory.
        ``voice_refresh_s``: seconds until a changed voice is noticed.

    Args:
        parameters: of the model.
        weights: the folder of a checkpoint; voices in its folder ``voices`` are built in.

    Raises:
        ModelLoadingError: a setting is not usable.
    """
    max_voices = parameters.integer("max_voices", 1_000, minimum=1)
    store: VoiceStore = ObjectVoiceStore(_objects(parameters), max_voices=max_voices)
    if weights is not None:
        objects = FolderObjects(weights / _BUILT_IN, MAX_VOICE_BYTES)
        store = LayeredStore(ObjectVoiceStore(objects, built_in=True), store)
    return CachedStore(
        store,
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
