"""One voice: T3's and S3Gen's tensors of a speaker, and their file.

The file is plain safetensors, so that reading one can never run code. Its tensors have
the names of :class:`Voice`'s fields; the details are JSON in the header's metadata. A file is
rejected unless every tensor has the shape, the type and the range that the models accept.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from parley.errors import InvalidMessageError, UnsupportedVoiceError, VoiceDamagedError
from parley.tts.voice_messages import FORMAT_VERSION, VoiceDetails
from parley_torch.tts.t3.request import SPEAKER_EMBEDDING_SIZE, SPEECH_CODES, TOKENS_PER_SECOND

MAX_VOICE_BYTES = 4 << 20
MAX_PROMPT_TOKENS = 30 * TOKENS_PER_SECOND
"""Length of either prompt; each model may use fewer."""
S3GEN_SPEAKER_SIZE = 192
MEL_BANDS = 80
FRAMES_PER_TOKEN = 2

_METADATA = "parley_voice"
_NAMES = ("speaker_embedding", "t3_prompt_tokens", "speaker", "prompt_tokens", "prompt_mel")
_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MAX_VALUE = 1e4  # larger numbers are neither an embedding nor the logarithm of a spectrum

F32: TypeAlias = NDArray[np.float32]
I32: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True)
class Voice:
    """The models' tensors of a speaker."""

    voice_id: str
    speaker_embedding: F32
    """``[256]``, of the voice encoder, for T3."""
    t3_prompt_tokens: I32
    """``[n]`` speech tokens of the recording's beginning, for T3; n may be 0."""
    speaker: F32
    """``[192]``, x-vector, for S3Gen."""
    prompt_tokens: I32
    """``[P]`` speech tokens of the reference, for S3Gen."""
    prompt_mel: F32
    """``[2P, 80]``, logarithmic mel spectrogram of the reference, for S3Gen."""
    details: VoiceDetails = field(default_factory=VoiceDetails)


def check_voice_id(voice_id: str) -> str:
    """Return a valid ``voice_id``.

    Raises:
        UnsupportedVoiceError: it is not made of 1 to 64 of ``a-z 0-9 _ -``, or begins with a mark.
    """
    if not _ID.fullmatch(voice_id):
        raise UnsupportedVoiceError(
            f"{voice_id[:80]!r} is no voice id: 1 to 64 of a-z, 0-9, _ and -, the first a letter or a digit"
        )
    return voice_id


def write_voice(voice: Voice) -> bytes:
    """The file of a voice.

    Raises:
        UnsupportedVoiceError: its id is not usable.
        VoiceDamagedError: a tensor has a wrong shape, type or value.
    """
    check_voice_id(voice.voice_id)
    _check(voice)
    tensors = {name: np.ascontiguousarray(getattr(voice, name)) for name in _NAMES}
    details = msgspec.json.encode(voice.details).decode()
    # One entry: the library writes several in a varying order, which would change the file's hash.
    data = safetensors.save(tensors, metadata={_METADATA: details})
    if len(data) > MAX_VOICE_BYTES:
        raise VoiceDamagedError(f"voice {voice.voice_id} takes {len(data)} bytes; at most {MAX_VOICE_BYTES}")
    return data


def read_voice(data: bytes, voice_id: str) -> Voice:
    """The voice in a file.

    Raises:
        UnsupportedVoiceError: the id is not usable.
        VoiceDamagedError: the file is not a voice, or a newer version wrote it.
    """
    check_voice_id(voice_id)
    details = read_details(data, voice_id)
    try:
        tensors = safetensors.load(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise VoiceDamagedError(f"voice {voice_id} cannot be read: {error}") from error
    if set(tensors) != set(_NAMES):
        raise VoiceDamagedError(f"voice {voice_id} holds {', '.join(sorted(tensors)) or 'no tensors'}")
    voice = Voice(voice_id, **{name: tensors[name] for name in _NAMES}, details=details)
    _check(voice)
    for name in _NAMES:
        getattr(voice, name).setflags(write=False)  # one voice serves many utterances
    return voice


def read_details(data: bytes, voice_id: str) -> VoiceDetails:
    """The details in a voice's file; its tensors are not read.

    Raises:
        VoiceDamagedError: the file is not a voice, or a newer version wrote it.
    """
    if len(data) > MAX_VOICE_BYTES:
        raise VoiceDamagedError(f"voice {voice_id} has {len(data)} bytes; at most {MAX_VOICE_BYTES} are read")
    try:
        (size,) = struct.unpack_from("<Q", data)
        header: dict[str, Any] = msgspec.json.decode(data[8 : 8 + size])
        details = msgspec.json.decode(header["__metadata__"][_METADATA], type=VoiceDetails)
    except (struct.error, msgspec.MsgspecError, LookupError, TypeError, RecursionError, ValueError) as error:
        # Without its repr, which contains the whole text if that is not UTF-8.
        reason = f"{type(error).__name__}: {error}"
        raise VoiceDamagedError(f"voice {voice_id} is not the file of a voice: {reason}") from error
    if details.version > FORMAT_VERSION:
        raise VoiceDamagedError(
            f"voice {voice_id} has format {details.version}; this version reads up to {FORMAT_VERSION}"
        )
    return details


def check_details(details: VoiceDetails, *, max_characters: int = 2_000) -> None:
    """Refuse details that are too long to be stored.

    Raises:
        InvalidMessageError: a text or a list is too long.
    """
    for name, text, most in (
        ("name", details.name, 100),
        ("description", details.description, max_characters),
        ("consent", details.consent, max_characters),
    ):
        if len(text) > most:
            raise InvalidMessageError(f"{name} has {len(text)} characters; at most {most} are stored")
    if len(details.languages) > 50 or any(len(language) > 20 for language in details.languages):
        raise InvalidMessageError("languages must be at most 50 codes such as 'en'")


def _check(voice: Voice) -> None:
    prompt = len(voice.prompt_tokens)
    try:
        _tensor("speaker_embedding", voice.speaker_embedding, (SPEAKER_EMBEDDING_SIZE,))
        _tensor("speaker", voice.speaker, (S3GEN_SPEAKER_SIZE,))
        _tensor("prompt_mel", voice.prompt_mel, (FRAMES_PER_TOKEN * prompt, MEL_BANDS))
        _tokens("prompt_tokens", voice.prompt_tokens, least=1)
        _tokens("t3_prompt_tokens", voice.t3_prompt_tokens, least=0)
    except ValueError as error:
        raise VoiceDamagedError(f"voice {voice.voice_id}: {error}") from error


def _tensor(name: str, tensor: F32, shape: tuple[int, ...]) -> None:
    if tensor.dtype != np.float32 or tensor.shape != shape:
        raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; it must be float32 {list(shape)}")
    if not (np.abs(tensor) < _MAX_VALUE).all():  # false for NaN, too
        raise ValueError(f"{name} holds values that are not finite or far too large")


def _tokens(name: str, tokens: I32, least: int) -> None:
    if tokens.dtype != np.int32 or tokens.ndim != 1 or not least <= len(tokens) <= MAX_PROMPT_TOKENS:
        raise ValueError(
            f"{name} is {tokens.dtype} {list(tokens.shape)}; it must be int32 "
            f"[{least} to {MAX_PROMPT_TOKENS}]"
        )
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < SPEECH_CODES:
        raise ValueError(f"{name} holds numbers outside 0 to {SPEECH_CODES - 1}")
