"""What ``voice_enrollment`` does with its requests."""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol, TypeVar

import msgspec

from parley.errors import (
    ConsentMissingError,
    DeadlineExceededError,
    InvalidMessageError,
    NotPermittedError,
    OverloadedError,
)
from parley.tts.voices.base import VoiceStore
from parley.tts.voices.enrollment.checks import Detect, EnrollmentLimits, examine
from parley.tts.voices.enrollment.conditionals import ReferenceRecording
from parley.tts.voices.enrollment.reading import read_recording
from parley.tts.voices.messages import (
    DeleteVoice,
    DescribeVoice,
    EnrollVoice,
    ListVoices,
    VoiceDetails,
    VoicesReply,
    VoicesRequest,
    VoiceSummary,
)
from parley.tts.voices.voice import Voice, check_details, check_voice_id

T = TypeVar("T")
_NAMED_BY_RECORDING = 8  # hexadecimal digits
_LONGEST_SLUG = 40
_NO_SLUG = re.compile(r"[^a-z0-9]+")


class Maker(Protocol):
    """The part of :class:`parley.tts.voices.enrollment.conditionals.VoiceMaker` that is used."""

    @property
    def signature(self) -> str:
        """Of everything that shapes a voice beside the recording."""
        ...

    def make(self, recording: ReferenceRecording, voice_id: str, details: VoiceDetails) -> Voice:
        """The voice of a recording's speaker."""
        ...


@dataclass(frozen=True)
class Policy:
    """What is permitted, and how much of it."""

    permitted: frozenset[str] = frozenset({"enroll", "list", "describe", "delete"})
    """Operations, by the tags of their messages."""
    require_consent: bool = True
    max_waiting: int = 8
    """Requests that are being answered or wait for it."""
    timeout_s: float = 60.0
    """Of one request."""
    limits: EnrollmentLimits = field(default_factory=EnrollmentLimits)


class EnrollmentService:
    """Answers requests on one event loop.

    Those that change the store are carried out one after the other, in the order in which they
    came; questions are answered between them.

    Args:
        maker: makes voices.
        detect: finds speech.
        store: keeps voices.
        policy: what is permitted.
        executor: of one thread, where voices are made.
    """

    def __init__(
        self, maker: Maker, detect: Detect, store: VoiceStore, policy: Policy, executor: Executor
    ) -> None:
        self._maker = maker
        self._detect = detect
        self._store = store
        self._policy = policy
        self._executor = executor
        self._changes = asyncio.Lock()  # gives way in the order of asking
        self._waiting = 0

    async def answer(self, message: VoicesRequest, audio: bytes) -> VoicesReply:
        """Do what a request asks for.

        Args:
            message: what is asked.
            audio: the recording's bytes, empty if there is none.

        Raises:
            ParleyError: it cannot be done; the store is as it was.
        """
        operation = str(message.__struct_config__.tag)
        if operation not in self._policy.permitted:
            raise NotPermittedError(f"this server does not permit {operation!r} of voices")
        if self._waiting >= self._policy.max_waiting:
            raise OverloadedError(f"{self._waiting} requests wait already")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._policy.timeout_s):
                return VoicesReply(voices=await self._do(message, audio))
        except TimeoutError as error:
            raise DeadlineExceededError(f"not done within {self._policy.timeout_s:g} s") from error
        finally:
            self._waiting -= 1

    async def _do(self, message: VoicesRequest, audio: bytes) -> list[VoiceSummary]:
        if isinstance(message, ListVoices):
            return [_brief(voice) for voice in await self._store.list()]
        if isinstance(message, DescribeVoice):
            return [await self._store.describe(message.voice_id)]
        async with self._changes:
            if isinstance(message, DeleteVoice):
                await self._store.delete(message.voice_id)
                return []
            return [await self._enroll(message, audio)]

    async def _enroll(self, message: EnrollVoice, audio: bytes) -> VoiceSummary:
        details = self._details(message)
        if message.replace and "delete" not in self._policy.permitted:
            raise NotPermittedError("this server does not permit that voices are replaced")
        voice_id = None if message.voice_id is None else check_voice_id(message.voice_id)
        voice = await self._aside(lambda: self._make(message, details, voice_id, audio))
        await self._store.put(voice, replace=message.replace)
        return await self._store.describe(voice.voice_id)

    def _details(self, message: EnrollVoice) -> VoiceDetails:
        if not message.name.strip():
            raise InvalidMessageError("the voice has no name")
        if self._policy.require_consent and not message.consent.strip():
            raise ConsentMissingError(
                "the speaker's consent is missing: send it in words, for example "
                "'I agree that my voice is used for this service. Anna Smith, 2 May 2025'"
            )
        details = VoiceDetails(
            name=message.name.strip(),
            languages=message.languages,
            description=message.description.strip(),
            consent=message.consent.strip(),
        )
        check_details(details)
        return details

    def _make(self, message: EnrollVoice, details: VoiceDetails, voice_id: str | None, audio: bytes) -> Voice:
        limits = self._policy.limits
        samples, rate = read_recording(
            audio, message.sample_rate, max_bytes=limits.max_bytes, max_s=limits.max_s
        )
        recording = ReferenceRecording.of(samples, rate)
        found = examine(samples, recording.heard, rate, self._detect, limits)
        if voice_id is None:
            content = sha256(recording.full.tobytes() + self._maker.signature.encode()).hexdigest()
            voice_id = f"{slug(details.name)}-{content[:_NAMED_BY_RECORDING]}"
        details = msgspec.structs.replace(details, warnings=list(found.warnings))
        return self._maker.make(recording, voice_id, details)

    async def _aside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def slug(name: str) -> str:
    """A name as the beginning of a voice id: ``Anna Müller`` becomes ``anna-muller``."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return _NO_SLUG.sub("-", plain).strip("-")[:_LONGEST_SLUG].rstrip("-") or "voice"


def _brief(voice: VoiceSummary) -> VoiceSummary:
    return msgspec.structs.replace(voice, details=msgspec.structs.replace(voice.details, consent=""))
