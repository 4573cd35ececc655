"""The service of ``voice_enrollment``: makes voices of recordings, lists and deletes them.

Voices are made as by upstream's ``prepare_conditionals``: from the recording at 24 kHz (for Turbo at a
set loudness), which is resampled to 16 kHz for the encoders. T3 gets the tokens of the first 6 s
(Turbo: 15 s) and the embedding of the whole; S3Gen gets spectrogram, tokens and embedding of the first
10 s. Two things differ: that reference is cut to whole tokens, so that its spectrogram has two frames
for each; and one resampler (soxr) serves both rates, where upstream has two.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

import msgspec
import numpy as np
import soxr
import torch
from numpy.typing import NDArray

from parley.errors import (
    ConsentMissingError,
    DeadlineExceededError,
    InvalidMessageError,
    NotPermittedError,
    OverloadedError,
)
from parley.tts.voice_messages import (
    DeleteVoice,
    DescribeVoice,
    EnrollVoice,
    ListVoices,
    Variant,
    VoiceDetails,
    VoicesReply,
    VoicesRequest,
    VoiceSummary,
)
from parley_torch.tts.t3.request import TOKENS_PER_SECOND
from parley_torch.tts.voices.enrollment.checkpoint import EnrollmentNetworks
from parley_torch.tts.voices.enrollment.recordings import (
    Detect,
    EnrollmentLimits,
    examine,
    normalize_loudness,
    read_recording,
)
from parley_torch.tts.voices.enrollment.spectra import PROMPT_RATE, RATE, prompt_mel, trim
from parley_torch.tts.voices.store import VoiceStore
from parley_torch.tts.voices.voice import MEL_BANDS, Voice, check_details, check_voice_id

_T3_PROMPT_S: dict[Variant, int] = {"original": 6, "multilingual": 6, "turbo": 15}
PROMPT_S = 10.0
"""The longest reference that S3Gen was trained with."""
_RECORDING_DIGITS = 8  # of its hash in a voice id
_MAX_SLUG = 40
_NON_SLUG = re.compile(r"[^a-z0-9]+")

Audio = NDArray[np.float32]


@dataclass(frozen=True)
class ReferenceRecording:
    """A recording at the networks' two rates."""

    audio_24k: Audio
    audio_16k: Audio

    @classmethod
    def of(cls, audio: Audio, rate: int) -> ReferenceRecording:
        """Resample a recording of any rate."""
        full = resample(audio, rate, PROMPT_RATE)
        return cls(full, resample(full, PROMPT_RATE, RATE))


class VoiceMaker:
    """Makes voices; one at a time.

    Args:
        networks: analyse the speaker.
        variant: the T3 that the voices are for.
        prompt_s: seconds of the reference for S3Gen. Its cost is paid with every chunk of speech:
            3 to 4 s make the first audio come sooner, 10 s are closest to the speaker.
    """

    def __init__(
        self, networks: EnrollmentNetworks, variant: Variant = "original", *, prompt_s: float = PROMPT_S
    ) -> None:
        self._networks = networks
        self._variant: Variant = variant
        self._prompt_tokens = int(prompt_s * TOKENS_PER_SECOND)

    @property
    def signature(self) -> str:
        """Identifies everything that shapes a voice besides the recording."""
        return f"{self._networks.digest} {self._variant} {self._prompt_tokens}"

    def make(self, recording: ReferenceRecording, voice_id: str, details: VoiceDetails) -> Voice:
        """The voice of a recording's speaker.

        The recording has at least a second; ``details`` lack what follows from it and the networks.
        """
        if self._variant == "turbo":
            recording = ReferenceRecording.of(
                normalize_loudness(recording.audio_24k, PROMPT_RATE), PROMPT_RATE
            )
        tokens = min(
            self._prompt_tokens,
            len(recording.audio_24k) * TOKENS_PER_SECOND // PROMPT_RATE,
            len(recording.audio_16k) * TOKENS_PER_SECOND // RATE,
        )
        reference = torch.from_numpy(recording.audio_16k[: tokens * RATE // TOKENS_PER_SECOND])
        full = torch.from_numpy(recording.audio_24k[: tokens * PROMPT_RATE // TOKENS_PER_SECOND])
        beginning = torch.from_numpy(recording.audio_16k[: _T3_PROMPT_S[self._variant] * RATE])
        networks = self._networks
        with torch.inference_mode():
            return Voice(
                voice_id,
                speaker_embedding=networks.voice_encoder(torch.from_numpy(trim(recording.audio_16k))).numpy(),
                t3_prompt_tokens=networks.tokenizer(beginning).numpy().astype(np.int32),
                speaker=networks.speaker_encoder(reference).numpy(),
                prompt_tokens=networks.tokenizer(reference).numpy().astype(np.int32),
                prompt_mel=np.ascontiguousarray(prompt_mel(full, MEL_BANDS).numpy()),
                details=msgspec.structs.replace(
                    details,
                    checkpoint=networks.digest,
                    variant=self._variant,
                    reference_s=round(len(recording.audio_24k) / PROMPT_RATE, 2),
                ),
            )


def resample(audio: Audio, rate: int, to: int) -> Audio:
    """A whole recording at another rate."""
    if rate == to:
        return audio
    return np.asarray(soxr.resample(audio, rate, to, quality="HQ"), np.float32)


@dataclass(frozen=True)
class Policy:
    """Permitted operations and limits."""

    permitted: frozenset[str] = frozenset({"enroll", "list", "describe", "delete"})
    """Operations, by the tags of their messages."""
    require_consent: bool = True
    max_waiting: int = 8
    """Requests that are running or waiting."""
    timeout_s: float = 60.0
    """Longest time of one request."""
    limits: EnrollmentLimits = field(default_factory=EnrollmentLimits)


class EnrollmentService:
    """Serves requests on one event loop.

    Requests that change the store run one after the other, in the order of their arrival; reading
    ones run concurrently.

    ``executor`` has one thread, in which voices are made.
    """

    def __init__(
        self, maker: VoiceMaker, detect: Detect, store: VoiceStore, policy: Policy, executor: Executor
    ) -> None:
        self._maker = maker
        self._detect = detect
        self._store = store
        self._policy = policy
        self._executor = executor
        self._changes = asyncio.Lock()  # fair
        self._waiting = 0

    async def answer(self, message: VoicesRequest, audio: bytes) -> VoicesReply:
        """Serve a request; ``audio`` is the recording's bytes or empty.

        Raises:
            ParleyError: it failed; the store has not changed.
        """
        operation = str(message.__struct_config__.tag)
        if operation not in self._policy.permitted:
            raise NotPermittedError(f"this server does not permit {operation!r} of voices")
        if self._waiting >= self._policy.max_waiting:
            raise OverloadedError(f"{self._waiting} requests wait already")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._policy.timeout_s):
                return VoicesReply(voices=await self._serve(message, audio))
        except TimeoutError as error:
            raise DeadlineExceededError(f"not done within {self._policy.timeout_s:g} s") from error
        finally:
            self._waiting -= 1

    async def _serve(self, message: VoicesRequest, audio: bytes) -> list[VoiceSummary]:
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
        details = make_details(message, require_consent=self._policy.require_consent)
        if message.replace and "delete" not in self._policy.permitted:
            raise NotPermittedError("this server does not permit that voices are replaced")
        voice_id = None if message.voice_id is None else check_voice_id(message.voice_id)
        make = partial(self._make, message, details, voice_id, audio)
        voice = await asyncio.get_running_loop().run_in_executor(self._executor, make)
        await self._store.put(voice, replace=message.replace)
        return await self._store.describe(voice.voice_id)

    def _make(self, message: EnrollVoice, details: VoiceDetails, voice_id: str | None, audio: bytes) -> Voice:
        recording, warnings = read_reference(audio, message.sample_rate, self._detect, self._policy.limits)
        if voice_id is None:
            content = sha256(recording.audio_24k.tobytes() + self._maker.signature.encode()).hexdigest()
            voice_id = f"{slug(details.name)}-{content[:_RECORDING_DIGITS]}"
        details = msgspec.structs.replace(details, warnings=warnings)
        return self._maker.make(recording, voice_id, details)


def make_details(message: EnrollVoice, *, require_consent: bool) -> VoiceDetails:
    """What a message says about a voice.

    Raises:
        InvalidMessageError: the voice has no name, or its description is too long.
        ConsentMissingError: the speaker's consent is missing.
    """
    if not message.name.strip():
        raise InvalidMessageError("the voice has no name")
    if require_consent and not message.consent.strip():
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


def read_reference(
    audio: bytes, sample_rate: int | None, detect: Detect, limits: EnrollmentLimits
) -> tuple[ReferenceRecording, list[str]]:
    """A recording that is suitable for a voice, and the warnings about it.

    Args:
        audio: a file, or PCM16 of ``sample_rate``; see :func:`read_recording`.
        sample_rate: hertz; None: a file.
        detect: detects speech.
        limits: requirements.

    Raises:
        ReferenceAudioError: it cannot be read, or a subclass: it is unsuitable.
        UnsupportedSampleRateError: its rate is out of range.
    """
    samples, rate = read_recording(audio, sample_rate, max_bytes=limits.max_bytes, max_s=limits.max_s)
    recording = ReferenceRecording.of(samples, rate)
    return recording, list(examine(samples, recording.audio_16k, rate, detect, limits).warnings)


def slug(name: str) -> str:
    """The part of a voice id that is made of a name: ``Anna Müller`` becomes ``anna-muller``."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return _NON_SLUG.sub("-", plain).strip("-")[:_MAX_SLUG].rstrip("-") or "voice"


def _brief(voice: VoiceSummary) -> VoiceSummary:
    return msgspec.structs.replace(voice, details=msgspec.structs.replace(voice.details, consent=""))
