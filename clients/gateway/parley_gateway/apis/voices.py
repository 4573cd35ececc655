"""Voices of callers' own: made of recordings with the speaker's consent, listed and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from msgspec import Meta
from starlette.responses import Response

from parley.errors import (
    ConsentMissingError,
    InvalidMessageError,
    NotPermittedError,
    TooManyVoicesError,
)
from parley.field_errors import describe_field_error
from parley.tts.voice_messages import VoiceSummary
from parley_gateway.bodies import VOICES, fields_of, json_answer, read_form
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter, ModelSlot
from parley_gateway.schemas import answers, form
from parley_gateway.security.audit import audit
from parley_gateway.security.principal import Principal
from parley_gateway.streaming import StageRoute, while_connected
from parley_gateway.voice_owners import check_voice, is_own, may_use, prefix_of
from parley_stages import Voices

_DIGITS = 12


class VoiceFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a request with a recording."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    """Shown in lists."""
    consent: Annotated[str, Meta(max_length=2_000)] = ""
    """The speaker's consent, in words: who agrees to what, and when. It is stored with the voice."""
    languages: list[Annotated[str, Meta(max_length=35)]] = []
    """Spoken in the recording, as in `en`; the field may be repeated."""
    description: Annotated[str, Meta(max_length=1_000)] = ""
    """Shown in lists."""


class VoiceAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A voice."""

    id: str
    """By which sessions and requests name it."""
    name: str
    own: bool
    """Whether the caller has made it, and may delete it; the others are shared."""
    languages: list[str]
    description: str
    recording_s: float
    """Length of the recording (seconds)."""
    warnings: list[str]
    """Faults of the recording: `noisy`, `narrow band`."""
    consent: str | None = None
    """The speaker's consent; only of one's own voices, and not in lists."""


class VoiceList(msgspec.Struct, frozen=True, kw_only=True):
    """The voices of a caller's own, and those made of recordings that all callers share."""

    voices: list[VoiceAnswer]


class VoiceRoutes(StageRoute):
    """``/v1/voices``."""

    async def create(self, request: Request) -> Response:
        """Make a voice of 5 to 30 s of one speaker: a WAV, FLAC or OGG file of one channel, up to 16 MiB."""
        principal = await self._gateway.guard.admit(request, "voices")
        prefix = _own_prefix(principal)
        with ExitStack() as resources:
            slot = resources.enter_context(self._limiter.place(principal))
            self._gateway.spool.check_announced(request.headers, slot.owner)
            with self._gateway.spool.open(slot.owner) as file:
                given, name = await read_form(request, file)
                fields = _read(given)
                if name != "file":
                    raise InvalidMessageError("the recording is missing: send a form with the field 'file'")
                async with self._gateway.spool.bytes_of(file) as recording:
                    voice = await while_connected(request, self._make(slot, prefix, fields, recording))
        audit("voice_made", principal, voice=voice.voice_id)
        return json_answer(_described(voice, principal), 201)

    async def _make(
        self, slot: ModelSlot, prefix: str, fields: VoiceFields, recording: bytes
    ) -> VoiceSummary:
        # The same request makes the same voice.
        digest = sha256(msgspec.json.encode(fields))
        await asyncio.to_thread(digest.update, recording)
        voice_id = f"{prefix}{digest.hexdigest()[:_DIGITS]}"
        with slot.lease() as server:
            async with Voices(server, timeout_s=self._settings.voice_s) as store:
                own = [voice.voice_id for voice in await store.list() if voice.voice_id.startswith(prefix)]
                most = self._settings.voices_per_key
                if voice_id not in own and len(own) >= most:
                    raise TooManyVoicesError(f"{len(own)} voices of this key are stored; at most {most}")
                return await store.enroll(recording, voice_id=voice_id, **msgspec.structs.asdict(fields))

    async def list(self, request: Request) -> Response:
        """The caller's own voices, and shared ones that were made of recordings."""
        principal = await self._gateway.guard.admit(request, "voices")
        voices = await while_connected(request, self._list(principal))
        return json_answer(VoiceList(voices=[_brief(voice, principal) for voice in voices]))

    async def _list(self, principal: Principal) -> Sequence[VoiceSummary]:
        with self._limiter.lease(principal) as server:
            async with Voices(server, timeout_s=self._settings.voice_s) as store:
                return [voice for voice in await store.list() if may_use(voice.voice_id, principal)]

    async def describe(self, request: Request, voice_id: str) -> Response:
        """One voice; of one's own with the consent that was stored."""
        principal = await self._gateway.guard.admit(request, "voices")
        check_voice(voice_id, principal)
        voice = await while_connected(request, self._describe(principal, voice_id))
        return json_answer(_described(voice, principal))

    async def _describe(self, principal: Principal, voice_id: str) -> VoiceSummary:
        with self._limiter.lease(principal) as server:
            async with Voices(server, timeout_s=self._settings.voice_s) as store:
                return await store.describe(voice_id)

    async def delete(self, request: Request, voice_id: str) -> Response:
        """Delete a voice of one's own. Calls that speak with it may go on for half a minute."""
        principal = await self._gateway.guard.admit(request, "voices")
        check_voice(voice_id, principal)
        if not is_own(voice_id, principal):
            raise NotPermittedError(f"voice {voice_id[:80]!r} is shared: its server's operator deletes it")
        await while_connected(request, self._delete(principal, voice_id))
        audit("voice_deleted", principal, voice=voice_id)
        return Response(status_code=204)

    async def _delete(self, principal: Principal, voice_id: str) -> None:
        with self._limiter.lease(principal) as server:
            async with Voices(server, timeout_s=self._settings.voice_s) as store:
                await store.delete(voice_id)


def _own_prefix(principal: Principal) -> str:
    prefix = prefix_of(principal)
    if prefix is None:
        raise NotPermittedError("callers by telephone have no voices of their own")
    return prefix


def _read(given: Sequence[tuple[str, str]]) -> VoiceFields:
    fields = fields_of(given, ("languages",))
    try:
        read = msgspec.convert(fields, VoiceFields)
    except msgspec.ValidationError as error:
        what = describe_field_error(error, VoiceFields)
        raise InvalidMessageError(f"the form cannot be read: {what}") from error
    if not read.consent.strip():
        raise ConsentMissingError(
            "the speaker's consent is missing: send it in words in the field 'consent', for example "
            "'I agree that my voice is used for this service. Anna Smith, 2 May 2025'"
        )
    return read


def _brief(voice: VoiceSummary, principal: Principal) -> VoiceAnswer:
    details = voice.details
    return VoiceAnswer(
        id=voice.voice_id,
        name=details.name,
        own=is_own(voice.voice_id, principal),
        languages=details.languages,
        description=details.description,
        recording_s=details.reference_s,
        warnings=details.warnings,
    )


def _described(voice: VoiceSummary, principal: Principal) -> VoiceAnswer:
    brief = _brief(voice, principal)
    return msgspec.structs.replace(brief, consent=voice.details.consent) if brief.own else brief


def routes(gateway: Gateway) -> APIRouter:
    """``POST`` and ``GET /v1/voices``, ``GET`` and ``DELETE /v1/voices/{voice_id}``."""
    router = APIRouter(tags=["voices"])
    voices = VoiceRoutes(gateway, ModelLimiter(gateway, "voices"))
    one = f"{VOICES}/{{voice_id}}"
    router.post(VOICES, openapi_extra=form(VoiceFields), responses=answers(201, VoiceAnswer))(voices.create)
    router.get(VOICES, responses=answers(200, VoiceList))(voices.list)
    router.get(one, responses=answers(200, VoiceAnswer))(voices.describe)
    router.delete(one, status_code=204, responses=answers(204))(voices.delete)
    return router
