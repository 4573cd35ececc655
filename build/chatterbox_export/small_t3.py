"""Shrunken random T3 checkpoints, voice encoders and tokenizers with the published key names.

They speak noise, but everything that loads, schedules and streams a real checkpoint works on
them, and fast enough for a test on a CPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from chatterbox_export.files import FILES
from parley.tts.voice_messages import Variant

_TEXT_VOCABULARY: dict[Variant, int] = {"original": 704, "multilingual": 2454, "turbo": 50276}
_SPEECH_VOCABULARY: dict[Variant, int] = {"original": 8194, "multilingual": 8194, "turbo": 6563}
_HEAD_SIZE = 64
_SPEAKER = 256
_END_OF_SPEECH = 6562
_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?'-\"0123456789"
# Large enough that random layers disagree about the next token.
_SPREAD = 0.15

_Shapes = Iterator[tuple[str, tuple[int, ...]]]


def write_small_t3(
    folder: Path, variant: Variant = "original", *, width: int = 128, layers: int = 2, seed: int = 0
) -> Path:
    """Write a checkpoint's T3, voice encoder and tokenizer.

    Args:
        folder: made if need be.
        variant: whose key names and vocabularies it has.
        width: of the transformer; a multiple of 64, 1024 in the published checkpoints.
        layers: of the transformer; published are 30, and 24 for Turbo.
        seed: of the weights.

    Returns:
        ``folder``.
    """
    if width % _HEAD_SIZE:
        raise ValueError(f"width {width} is not a multiple of {_HEAD_SIZE}")
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    t3 = _tensors(t3_shapes(variant, width, layers), generator)
    t3["speech_head.weight"][_END_OF_SPEECH] *= 1.7  # ends an utterance after some eighty tokens
    save_file(t3, folder / FILES[variant].t3[1])
    save_file(_tensors(voice_encoder_shapes(), generator), folder / "ve.safetensors")
    if variant == "turbo":
        _write_turbo_tokenizer(folder)
    else:
        _write_letters(folder / FILES[variant].tokenizer[0], _TEXT_VOCABULARY[variant])
    return folder


def _tensors(shapes: _Shapes, generator: torch.Generator) -> dict[str, Tensor]:
    return {name: _random(name, shape, generator) for name, shape in shapes}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name in ("similarity_weight", "similarity_bias"):
        return torch.full(shape, 10.0 if name.endswith("weight") else -5.0)
    if "norm" in name or "ln_" in name:
        return 0.05 * noise + (1.0 if name.endswith("weight") else 0.0)
    if "_emb." in name or "wpe" in name:
        return noise  # what the tokens are must matter more than where they are
    return _SPREAD * noise


def _linear(name: str, outputs: int, inputs: int, *, bias: bool = False) -> _Shapes:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _norm(name: str, width: int) -> _Shapes:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def t3_shapes(variant: Variant, width: int, layers: int) -> _Shapes:
    """Names and shapes of a T3's tensors; see :func:`write_small_t3`."""
    text, speech = _TEXT_VOCABULARY[variant], _SPEECH_VOCABULARY[variant]
    if variant == "turbo":
        yield from _gpt2(width, layers)
    else:
        yield from _llama(width, layers)
        yield "text_pos_emb.emb.weight", (2048 + 2, width)
        yield "speech_pos_emb.emb.weight", (4096 + 4, width)
        yield "cond_enc.emotion_adv_fc.weight", (width, 1)
        yield "cond_enc.perceiver.pre_attention_query", (1, 32, width)
        yield from _norm("cond_enc.perceiver.attn.norm", width)
        for part in ("to_q", "to_k", "to_v", "proj_out"):
            yield from _linear(f"cond_enc.perceiver.attn.{part}", width, width, bias=True)
    yield from _linear("cond_enc.spkr_enc", width, _SPEAKER, bias=True)
    yield "text_emb.weight", (text, width)
    yield "speech_emb.weight", (speech, width)
    yield from _linear("text_head", text, width)
    yield from _linear("speech_head", speech, width, bias=variant == "turbo")


def _llama(width: int, layers: int) -> _Shapes:
    yield "tfmr.embed_tokens.weight", (8, width)
    for layer in (f"tfmr.layers.{number}" for number in range(layers)):
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield from _linear(f"{layer}.self_attn.{part}", width, width)
        yield from _linear(f"{layer}.mlp.gate_proj", 4 * width, width)
        yield from _linear(f"{layer}.mlp.up_proj", 4 * width, width)
        yield from _linear(f"{layer}.mlp.down_proj", width, 4 * width)
        yield f"{layer}.input_layernorm.weight", (width,)
        yield f"{layer}.post_attention_layernorm.weight", (width,)
    yield "tfmr.norm.weight", (width,)


def _gpt2(width: int, layers: int) -> _Shapes:
    yield "tfmr.wte.weight", (8, width)
    yield "tfmr.wpe.weight", (8196, width)
    for layer in (f"tfmr.h.{number}" for number in range(layers)):
        yield from _norm(f"{layer}.ln_1", width)
        yield from _norm(f"{layer}.ln_2", width)
        # GPT-2 stores its matrices transposed.
        for part, inputs, outputs in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            yield f"{layer}.{part}.weight", (inputs, outputs)
            yield f"{layer}.{part}.bias", (outputs,)
    yield from _norm("tfmr.ln_f", width)


def voice_encoder_shapes() -> _Shapes:
    """Names and shapes of the voice encoder, which is small as it is."""
    yield "similarity_weight", (1,)
    yield "similarity_bias", (1,)
    for layer in range(3):
        yield f"lstm.weight_ih_l{layer}", (4 * 256, 40 if layer == 0 else 256)
        yield f"lstm.weight_hh_l{layer}", (4 * 256, 256)
        yield f"lstm.bias_ih_l{layer}", (4 * 256,)
        yield f"lstm.bias_hh_l{layer}", (4 * 256,)
    yield from _linear("proj", _SPEAKER, 256, bias=True)


def _write_letters(path: Path, size: int) -> None:
    """A tokenizer of single letters with the published marks at their published places."""
    from tokenizers import Tokenizer, models

    marks = {"[STOP]": 0, "[UNK]": 1, "[SPACE]": 2, "[START]": 255}
    names = [f"[{language}]" for language in ("en", "de", "fr", "es", "ko")] if size > 704 else []
    free = (number for number in range(size) if number not in marks.values())
    vocabulary = marks | {piece: next(free) for piece in [*_CHARACTERS, *names]}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.add_special_tokens([*marks, *names])
    tokenizer.save(str(path))


def _write_turbo_tokenizer(folder: Path) -> None:
    """A GPT-2 tokenizer of single bytes with Turbo's kind of tags."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate([*alphabet, "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tags = {"[laugh]": len(vocabulary), "[sigh]": len(vocabulary) + 1}
    (folder / "added_tokens.json").write_text(json.dumps(tags))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024})
    )
