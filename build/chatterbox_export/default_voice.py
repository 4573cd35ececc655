"""``conds.pt``, the voice that a checkpoint is published with, as a voice of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chatterbox_export.files import CONDITIONALS
from chatterbox_export.tensors import read_pickled
from checkpoints import ChatterboxEntry
from comparison import ExportError
from parley.errors import VoiceDamagedError
from parley_torch.tts.t3.request import SPEAKER_EMBEDDING_SIZE, TOKENS_PER_SECOND
from parley_torch.tts.voices.voice import (
    FRAMES_PER_TOKEN,
    MEL_BANDS,
    S3GEN_SPEAKER_SIZE,
    Voice,
    VoiceDetails,
    write_voice,
)

VOICE_ID = "default"
_USED = {
    "t3": {"speaker_emb", "cond_prompt_speech_tokens"},
    "gen": {"prompt_token", "prompt_feat", "embedding"},
}
# Of upstream's ``Conditionals`` besides: not used by any checkpoint, following from others, or a setting.
_KNOWN = {
    "t3": {"clap_emb", "cond_prompt_speech_emb", "emotion_adv"},
    "gen": {"prompt_token_len", "prompt_feat_len"},
}


def read_default_voice(path: Path, entry: ChatterboxEntry, digest: str) -> Voice:
    """The published voice.

    Args:
        path: ``conds.pt``.
        entry: of the checkpoint.
        digest: of the networks that made it; see :class:`parley_torch.tts.voices.voice.VoiceDetails`.

    Raises:
        ExportError: a field is missing, unexpected, or not of the shape that it has upstream.
    """
    parts = _fields(path, read_pickled(path), "", set(_USED), set())
    t3, gen = (_fields(path, parts[name], f"{name}.", _USED[name], _KNOWN[name]) for name in ("t3", "gen"))
    tokens = _tensor(path, gen, "gen.prompt_token", (1, None), torch.int64)[0]
    mel = _tensor(path, gen, "gen.prompt_feat", (1, None, MEL_BANDS))[0]
    frames = FRAMES_PER_TOKEN * len(tokens)
    # Where the recording is no whole number of tokens, a frame is left over.
    if not frames <= len(mel) <= frames + 1:
        raise ExportError(
            f"{path}: gen.prompt_feat has {len(mel)} frames, which is not {FRAMES_PER_TOKEN} for each of the "
            f"{len(tokens)} tokens of gen.prompt_token"
        )
    if t3["cond_prompt_speech_tokens"] is None:
        t3["cond_prompt_speech_tokens"] = torch.zeros(1, 0, dtype=torch.int64)
    voice = Voice(
        VOICE_ID,
        speaker_embedding=_tensor(path, t3, "t3.speaker_emb", (1, SPEAKER_EMBEDDING_SIZE))[0],
        t3_prompt_tokens=_tensor(path, t3, "t3.cond_prompt_speech_tokens", (1, None), torch.int64)[0],
        speaker=_tensor(path, gen, "gen.embedding", (1, S3GEN_SPEAKER_SIZE))[0],
        prompt_tokens=tokens,
        prompt_mel=np.ascontiguousarray(mel[:frames]),
        details=VoiceDetails(
            name="Chatterbox",
            description=f"Published with the checkpoint as {CONDITIONALS}.",
            checkpoint=digest,
            variant=entry.variant,
            reference_s=len(tokens) / TOKENS_PER_SECOND,
        ),
    )
    try:
        write_voice(voice)
    except VoiceDamagedError as error:
        raise ExportError(f"{path}: {error}") from error
    return voice


def _fields(path: Path, value: Any, where: str, required: set[str], known: set[str]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ExportError(f"{path}: {where or 'it'} is no collection of fields")
    if missing := sorted(required - set(value)):
        raise ExportError(f"{path} lacks {', '.join(where + name for name in missing)}")
    if unexpected := sorted(map(str, set(value) - required - known)):
        raise ExportError(f"{path} has unexpected fields: {', '.join(where + name for name in unexpected)}")
    return dict(value)


def _tensor(
    path: Path,
    fields: Mapping[str, Any],
    name: str,
    shape: tuple[int | None, ...],
    kind: torch.dtype = torch.float32,
) -> Any:
    """A field as numpy has it: float32, or int32 for what is of type i64 here."""
    value = fields[name.rpartition(".")[2]]
    if not isinstance(value, Tensor):
        raise ExportError(f"{path}: {name} is no tensor")
    fits = value.ndim == len(shape) and all(
        want in (None, size) for want, size in zip(shape, value.shape, strict=True)
    )
    whole = kind == torch.int64
    if not fits or value.is_floating_point() == whole or value.is_complex():
        sizes = ", ".join("n" if size is None else str(size) for size in shape)
        raise ExportError(
            f"{path}: {name} is {value.dtype} {list(value.shape)} and must be "
            f"{'whole numbers' if whole else 'numbers'} [{sizes}]"
        )
    return value.detach().cpu().to(torch.int32 if whole else torch.float32).numpy().copy()
