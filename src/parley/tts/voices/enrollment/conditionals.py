"""What the models have to know of a speaker, out of a recording.

As upstream's ``prepare_conditionals``: the recording at 24 kHz (for Turbo at a set loudness), from
it all that is heard at 16 kHz. T3 is given the tokens of the first 6 s (Turbo: 15 s) and the
embedding of the whole, S3Gen is given spectrogram, tokens and embedding of the first 10 s. One
thing differs: that reference is cut to whole tokens, so that its spectrogram has two frames for
each; and one resampler (soxr) serves both rates, where upstream has two.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import soxr
import torch
from numpy.typing import NDArray

from parley.tts.t3.checkpoint import Variant
from parley.tts.voices.enrollment import loudness
from parley.tts.voices.enrollment.checkpoint import EnrollmentNetworks
from parley.tts.voices.enrollment.spectra import PROMPT_RATE, RATE, prompt_mel, trim
from parley.tts.voices.messages import VoiceDetails
from parley.tts.voices.voice import MEL_BANDS, TOKENS_PER_SECOND, Voice

_T3_PROMPT_S: dict[Variant, int] = {"original": 6, "multilingual": 6, "turbo": 15}
PROMPT_S = 10.0
"""What S3Gen was trained with at most."""
Audio = NDArray[np.float32]


@dataclass(frozen=True)
class ReferenceRecording:
    """A recording at the rates at which it is heard."""

    full: Audio
    """f32 ``[n]``, 24 kHz."""
    heard: Audio
    """f32 ``[m]``, 16 kHz."""

    @classmethod
    def of(cls, audio: Audio, rate: int) -> ReferenceRecording:
        """A recording of any rate."""
        full = resample(audio, rate, PROMPT_RATE)
        return cls(full, resample(full, PROMPT_RATE, RATE))


class VoiceMaker:
    """Makes voices; one at a time.

    Args:
        networks: hear the speaker.
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
        """Of everything that shapes a voice beside the recording."""
        return f"{self._networks.digest} {self._variant} {self._prompt_tokens}"

    def make(self, recording: ReferenceRecording, voice_id: str, details: VoiceDetails) -> Voice:
        """The voice of a recording's speaker.

        Args:
            recording: at least a second.
            voice_id: the voice's id.
            details: as far as they do not follow from the recording and the networks.
        """
        if self._variant == "turbo":
            recording = ReferenceRecording.of(loudness.normalize(recording.full, PROMPT_RATE), PROMPT_RATE)
        tokens = min(
            self._prompt_tokens,
            len(recording.full) * TOKENS_PER_SECOND // PROMPT_RATE,
            len(recording.heard) * TOKENS_PER_SECOND // RATE,
        )
        reference = torch.from_numpy(recording.heard[: tokens * RATE // TOKENS_PER_SECOND])
        full = torch.from_numpy(recording.full[: tokens * PROMPT_RATE // TOKENS_PER_SECOND])
        beginning = torch.from_numpy(recording.heard[: _T3_PROMPT_S[self._variant] * RATE])
        networks = self._networks
        with torch.inference_mode():
            return Voice(
                voice_id,
                speaker_embedding=networks.voice_encoder(torch.from_numpy(trim(recording.heard))).numpy(),
                t3_prompt_tokens=networks.tokenizer(beginning).numpy().astype(np.int32),
                speaker=networks.speaker_encoder(reference).numpy(),
                prompt_tokens=networks.tokenizer(reference).numpy().astype(np.int32),
                prompt_mel=np.ascontiguousarray(prompt_mel(full, MEL_BANDS).numpy()),
                details=msgspec.structs.replace(
                    details,
                    checkpoint=networks.digest,
                    variant=self._variant,
                    reference_s=round(len(recording.full) / PROMPT_RATE, 2),
                ),
            )


def resample(audio: Audio, rate: int, to: int) -> Audio:
    """A whole recording at another rate."""
    if rate == to:
        return audio
    return np.asarray(soxr.resample(audio, rate, to, quality="HQ"), np.float32)
