"""Published T3 checkpoints: one safetensors file; all sizes come from the shapes of its tensors."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from parley.errors import ModelLoadingError
from parley.tts.voice_messages import Variant
from parley_torch.tts.t3.request import END_OF_SPEECH, PLACEHOLDERS, START_OF_SPEECH

_HEAD_SIZE = 64  # of every published model; no shape shows it
_ENGLISH_TEXT_VOCABULARY = 704
_MAX_HEADER_BYTES = 100 << 20  # the library's own limit
_MAX_PROMPT_TOKENS = {"original": 150, "multilingual": 150, "turbo": 375}
_LLAMA_CONTEXT = 131072
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True)
class T3Shape:
    """Sizes of one checkpoint."""

    variant: Variant
    width: int
    layers: int
    inner: int
    """Width of the feed-forward layers."""
    text_vocabulary: int
    speech_vocabulary: int
    context: int
    """Positions of the transformer."""
    max_text: int
    """Text tokens, marks included."""
    max_speech: int
    """Generated tokens."""
    max_prompt_tokens: int
    """Speech tokens of the reference recording; more are cut off."""

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.width // _HEAD_SIZE

    @property
    def guided(self) -> bool:
        """Whether the checkpoint has guidance, emotion and speech positions; Turbo has not."""
        return self.variant != "turbo"


def find_checkpoint(folder: Path, name: str = "") -> Path:
    """The T3 file in a checkpoint's folder: ``name``, or the only ``t3_*.safetensors``.

    Raises:
        ModelLoadingError: there is none, or more than one.
    """
    found = [folder / name] if name else sorted(folder.glob("t3_*.safetensors"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise ModelLoadingError(
            f"{folder} must hold one t3_*.safetensors, or `checkpoint` must name one; it has {names}"
        )
    if not found[0].is_file():
        raise ModelLoadingError(f"{found[0]} does not exist")
    return found[0]


def read_shape(path: Path) -> T3Shape:
    """Read the sizes of a checkpoint without loading it.

    Raises:
        ModelLoadingError: it is not a safetensors file, or not one of a T3.
    """
    try:
        return _shape(_read_header(path))
    except (OSError, AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
        raise ModelLoadingError(f"{path} is not a T3 checkpoint: {error!r}") from error


def _read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes by name. Without the library, which would import PyTorch before vLLM can set it up."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes")
        header = json.loads(file.read(size))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def _shape(shapes: Mapping[str, tuple[int, ...]]) -> T3Shape:
    text_vocabulary, width = shapes["text_emb.weight"]
    speech_vocabulary, _ = shapes["speech_emb.weight"]
    if width % _HEAD_SIZE:
        raise ValueError(f"width {width} is not a multiple of {_HEAD_SIZE}")
    turbo = "tfmr.wpe.weight" in shapes
    english = text_vocabulary == _ENGLISH_TEXT_VOCABULARY
    variant: Variant = "turbo" if turbo else "original" if english else "multilingual"
    if turbo:
        inner, context = shapes["tfmr.h.0.mlp.c_fc.weight"][1], shapes["tfmr.wpe.weight"][0]
    else:
        inner, context = shapes["tfmr.layers.0.mlp.up_proj.weight"][0], _LLAMA_CONTEXT
    return T3Shape(
        variant=variant,
        width=width,
        layers=_count(shapes, "tfmr.h." if turbo else "tfmr.layers."),
        inner=inner,
        text_vocabulary=text_vocabulary,
        speech_vocabulary=speech_vocabulary,
        context=context,
        max_text=context if turbo else shapes["text_pos_emb.emb.weight"][0],
        # The last token is never fed back, the start token has position 0.
        max_speech=context if turbo else shapes["speech_pos_emb.emb.weight"][0],
        max_prompt_tokens=_MAX_PROMPT_TOKENS[variant],
    )


def _count(shapes: Mapping[str, tuple[int, ...]], prefix: str) -> int:
    """Layers whose tensors begin with ``prefix`` and a number."""
    return len({name[len(prefix) :].split(".")[0] for name in shapes if name.startswith(prefix)})


def engine_config(shape: T3Shape) -> dict[str, Any]:
    """The ``config.json`` from which vLLM builds the model."""
    common: dict[str, Any] = {
        "vocab_size": shape.speech_vocabulary + PLACEHOLDERS,
        "bos_token_id": START_OF_SPEECH,
        "eos_token_id": END_OF_SPEECH,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "t3_speech_vocabulary": shape.speech_vocabulary,
    }
    if not shape.guided:
        return common | {
            "architectures": ["ChatterboxT3Turbo"],
            "model_type": "gpt2",
            "n_embd": shape.width,
            "n_head": shape.heads,
            "n_layer": shape.layers,
            "n_inner": shape.inner,
            "n_positions": shape.context,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
        }
    return common | {
        "architectures": ["ChatterboxT3"],
        "model_type": "llama",
        # Both halves of guidance side by side: see parley_torch.tts.t3.vllm_models.
        "hidden_size": 2 * shape.width,
        "num_attention_heads": 2 * shape.heads,
        "num_key_value_heads": 2 * shape.heads,
        "head_dim": _HEAD_SIZE,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        # The section makes vLLM ask the model for its positions: parley_torch.tts.t3.request.
        "rope_parameters": {**_ROPE, "mrope_section": [_HEAD_SIZE // 2, 0, 0]},
        "t3_width": shape.width,
        "t3_heads": shape.heads,
        "t3_speech_positions": shape.max_speech,
    }


def engine_folder(checkpoint: Path, shape: T3Shape, cache: Path) -> Path:
    """A folder that vLLM can load: a configuration and a link to the checkpoint.

    The same checkpoint gets the same folder at every start, so that vLLM reuses its compiled graphs.
    """
    config = json.dumps(engine_config(shape), indent=1, sort_keys=True)
    name = sha256(f"{checkpoint.resolve()}\n{config}".encode()).hexdigest()[:16]
    folder = cache / name
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "model.safetensors"
    if not link.is_symlink():
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            made = Path(fresh) / "link"
            made.symlink_to(checkpoint.resolve())
            made.replace(link)
    descriptor, written = tempfile.mkstemp(dir=folder)
    with os.fdopen(descriptor, "w") as file:
        file.write(config)
    Path(written).replace(folder / "config.json")
    return folder
