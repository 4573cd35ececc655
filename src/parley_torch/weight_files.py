"""Which files the weights of each model of this package consist of; without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parley.engines.weight_files import one_of
from parley.runtime.parameters import Parameters
from parley_torch.tts.chatterbox import files as chatterbox
from parley_torch.tts.t3.checkpoint import read_shape


def t3_files(folder: Path, parameters: Parameters) -> Sequence[str]:
    """Of ``t3``: the only T3 file or the one that is named, and its tokenizer."""
    found = _t3_checkpoint(folder, parameters)
    if not (folder / found[0]).is_file():
        return found
    return (*found, chatterbox.TOKENIZERS[read_shape(folder / found[0]).variant])


def chatterbox_files(folder: Path, parameters: Parameters) -> Sequence[str]:
    """Of ``chatterbox``, which reads the variant from the T3 file."""
    return _t3_checkpoint(folder, parameters)


def s3gen_files(folder: Path, _parameters: Parameters) -> Sequence[str]:
    """Of ``s3gen``: one of two."""
    return one_of(folder, chatterbox.S3GEN)


def enrollment_files(folder: Path, _parameters: Parameters) -> Sequence[str]:
    """Of what makes voices."""
    return (chatterbox.VOICE_ENCODER, *one_of(folder, chatterbox.S3GEN))


def _t3_checkpoint(folder: Path, parameters: Parameters) -> Sequence[str]:
    if name := parameters.text("checkpoint", ""):
        return (name,)
    found = sorted(path.name for path in folder.glob(chatterbox.T3))
    # Of several none is needed: the model asks for a choice.
    return found[:1] or (chatterbox.T3,)
