"""Shrunken random checkpoints as they are served, and as the hub has the real ones, to be converted."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from chatterbox_export.files import CONDITIONALS, FILES
from chatterbox_export.small_listeners import small_listeners
from chatterbox_export.small_s3gen import small_s3gen, write_small_s3gen
from chatterbox_export.small_t3 import write_small_t3
from parley.tts.voice_messages import Variant

_DENSE_LAYERS = (12, 24, 16)  # upstream's code has no other


def write_small(folder: Path, variant: Variant, *, seed: int = 0) -> Path:
    """Write what the models load; see :func:`write_small_published`."""
    write_small_t3(folder, variant, seed=seed)
    write_small_s3gen(folder, meanflow=variant == "turbo", seed=seed)
    return folder


def write_small_published(folder: Path, variant: Variant, *, seed: int = 0) -> Path:
    """Write every file that is published for a variant.

    Returns:
        ``folder``.
    """
    files = FILES[variant]
    write_small_t3(folder, variant, seed=seed)
    s3gen = small_whole_s3gen(meanflow=variant == "turbo", seed=seed)
    written = folder / FILES["original"].voice_encoder[0]
    _write(load_file(written), folder / files.voice_encoder[0])
    if written.name != files.voice_encoder[0]:
        written.unlink()
    _write(s3gen, folder / files.s3gen[0])
    torch.save(
        small_conditionals(prompt=60, t3_prompt=375 if variant == "turbo" else 150), folder / CONDITIONALS
    )
    return folder


def small_whole_s3gen(*, meanflow: bool, seed: int = 0) -> dict[str, torch.Tensor]:
    """All tensors of S3Gen, as small as upstream's code allows."""
    made = small_s3gen(meanflow=meanflow, seed=seed)
    return made | small_listeners(dense_layers=_DENSE_LAYERS, seed=seed)


def small_conditionals(*, prompt: int, t3_prompt: int, seed: int = 0) -> dict[str, dict[str, object]]:
    """A random voice with the fields of upstream's ``Conditionals``."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    def tokens(count: int) -> torch.Tensor:
        return torch.randint(6561, (1, count), generator=generator)

    return {
        "t3": {
            "speaker_emb": torch.nn.functional.normalize(numbers(1, 256)),
            "clap_emb": None,
            "cond_prompt_speech_tokens": tokens(t3_prompt),
            "cond_prompt_speech_emb": None,
            "emotion_adv": torch.full((1, 1, 1), 0.5),
        },
        "gen": {
            "prompt_token": tokens(prompt),
            "prompt_token_len": torch.tensor([prompt]),
            "prompt_feat": numbers(1, 2 * prompt, 80),
            "prompt_feat_len": None,
            "embedding": numbers(1, 192),
        },
    }


def _write(tensors: dict[str, torch.Tensor], path: Path) -> None:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
