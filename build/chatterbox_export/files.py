"""Which files each variant of Chatterbox has."""

from __future__ import annotations

from typing import NamedTuple

from parley.tts.voice_messages import Variant

CONDITIONALS = "conds.pt"
"""The voice that a checkpoint is published with."""


class Files(NamedTuple):
    """The files of a variant. Of a pair, the first is published and the second is what the models load."""

    t3: tuple[str, str]
    s3gen: tuple[str, str]
    voice_encoder: tuple[str, str]
    tokenizer: tuple[str, ...]
    """Taken as they are."""
    tokenizer_extras: tuple[str, ...] = ()
    """The same, where they are there."""


# As ``from_local`` of chatterbox-tts 0.1.7 reads them (tts.py, mtl_tts.py, tts_turbo.py).
FILES: dict[Variant, Files] = {
    "original": Files(
        t3=("t3_cfg.safetensors", "t3_cfg.safetensors"),
        s3gen=("s3gen.safetensors", "s3gen.safetensors"),
        voice_encoder=("ve.safetensors", "ve.safetensors"),
        tokenizer=("tokenizer.json",),
    ),
    "multilingual": Files(
        t3=("t3_mtl23ls_v2.safetensors", "t3_mtl23ls_v2.safetensors"),
        s3gen=("s3gen.pt", "s3gen.safetensors"),
        voice_encoder=("ve.pt", "ve.safetensors"),
        tokenizer=("grapheme_mtl_merged_expanded_v1.json",),
    ),
    "turbo": Files(
        t3=("t3_turbo_v1.safetensors", "t3_turbo_v1.safetensors"),
        s3gen=("s3gen_meanflow.safetensors", "s3gen_meanflow.safetensors"),
        voice_encoder=("ve.safetensors", "ve.safetensors"),
        tokenizer=("vocab.json", "merges.txt", "tokenizer_config.json", "added_tokens.json"),
        tokenizer_extras=("special_tokens_map.json",),
    ),
}
