"""The steps of the ensemble that makes a voice and stores nothing: recording to checks to conditionals.

What comes out are inputs of ``t3`` and ``s3gen``, the same as in a voice that ``voice_enrollment`` stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from parley.errors import InferenceError, InvalidInputError, ParleyError
from parley.inference import Tensor, decode_request, text_tensor
from parley.tts.voice_messages import EnrollVoice, VoiceDetails
from parley_torch.tts.voices.enrollment.recordings import Detect, EnrollmentLimits
from parley_torch.tts.voices.enrollment.service import (
    ReferenceRecording,
    VoiceMaker,
    make_details,
    read_reference,
)
from parley_torch.tts.voices.enrollment.spectra import PROMPT_RATE, RATE

_requests: msgspec.json.Decoder[EnrollVoice] = msgspec.json.Decoder(EnrollVoice)
_UNNAMED = "unnamed"
"""The voice id of what is not stored."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class ReferenceChecks:
    """Recordings that are suitable for a voice.

    Inputs: ``REQUEST`` (JSON of ``EnrollVoice``, whose name, consent and rate count) ``[1]``, ``AUDIO`` u8
    ``[n]``: a file or PCM16. Outputs: ``AUDIO_24K`` and ``AUDIO_16K`` f32 ``[m]``, ``WARNINGS`` (JSON: a list
    of words) ``[1]``.
    """

    detect: Detect
    limits: EnrollmentLimits
    require_consent: bool = True

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors | ParleyError]:
        """Each recording at both rates, or why it is refused."""
        return [self._check(request) for request in requests]

    def _check(self, request: Tensors) -> Tensors | ParleyError:
        try:
            message = decode_request(request["REQUEST"], _requests)
            make_details(message, require_consent=self.require_consent)
            audio = request["AUDIO"].tobytes()
            recording, warnings = read_reference(audio, message.sample_rate, self.detect, self.limits)
        except ParleyError as error:
            return error
        return {
            "AUDIO_24K": recording.audio_24k,
            "AUDIO_16K": recording.audio_16k,
            "WARNINGS": text_tensor(msgspec.json.encode(warnings)),
        }


@dataclass(frozen=True)
class Conditionals:
    """What ``t3`` and ``s3gen`` need of a speaker.

    Inputs: ``AUDIO_24K`` and ``AUDIO_16K`` f32 ``[n]``: the same recording, at least a second of it. Outputs:
    ``SPEAKER_EMBEDDING`` f32 ``[256]`` and ``T3_PROMPT_TOKENS`` i32 ``[k]`` for ``t3``; ``SPEAKER`` f32
    ``[192]``, ``PROMPT_TOKENS`` i32 ``[P]`` and ``PROMPT_MEL`` f32 ``[2P, 80]`` for ``s3gen``.
    """

    maker: VoiceMaker
    limits: EnrollmentLimits

    def serve(self, requests: Sequence[Tensors]) -> list[Tensors | ParleyError]:
        """The conditionals of each recording, one after the other."""
        return [self._make(request) for request in requests]

    def _make(self, request: Tensors) -> Tensors | ParleyError:
        full, half = request["AUDIO_24K"].reshape(-1), request["AUDIO_16K"].reshape(-1)
        try:
            self._check("AUDIO_24K", full, PROMPT_RATE)
            self._check("AUDIO_16K", half, RATE)
        except ParleyError as error:
            return error
        try:
            voice = self.maker.make(ReferenceRecording(full, half), _UNNAMED, VoiceDetails())
        except Exception as error:  # noqa: BLE001 - PyTorch's have no common class
            return InferenceError(f"the voice could not be made: {type(error).__name__}: {error}")
        return {
            "SPEAKER_EMBEDDING": voice.speaker_embedding,
            "T3_PROMPT_TOKENS": voice.t3_prompt_tokens,
            "SPEAKER": voice.speaker,
            "PROMPT_TOKENS": voice.prompt_tokens,
            "PROMPT_MEL": voice.prompt_mel,
        }

    def _check(self, name: str, audio: Tensor, rate: int) -> None:
        longest = int(self.limits.max_s * rate) + 1  # resampling rounds
        if audio.dtype != np.float32 or not rate <= len(audio) <= longest:
            raise InvalidInputError(
                f"{name} has {len(audio)} samples of {audio.dtype}; "
                f"it must have {rate} to {longest} of float32"
            )
        if not np.isfinite(audio).all():
            raise InvalidInputError(f"{name} has values that are not finite")
