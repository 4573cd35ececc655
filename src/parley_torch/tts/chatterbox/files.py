"""Names of the files in the folder of a Chatterbox checkpoint, which its models share; without torch."""

from __future__ import annotations

from collections.abc import Mapping

from parley.tts.voice_messages import Variant

T3 = "t3_*.safetensors"
"""One of them."""
S3GEN = ("s3gen_meanflow.safetensors", "s3gen.safetensors")
"""One of them, in order of preference."""
VOICE_ENCODER = "ve.safetensors"
TOKENIZERS: Mapping[Variant, str] = {
    "original": "tokenizer.json",
    "multilingual": "grapheme_mtl_merged_expanded_v1.json",
    "turbo": "tokenizer_config.json",
}
"""By variant; Turbo's consists of more, which this one names."""
