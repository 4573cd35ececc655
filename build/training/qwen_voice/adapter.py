"""Low-rank adapters (LoRA): trained beside frozen matrices, and written in the layout of the library peft."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen2Config, Qwen2ForCausalLM

from comparison import ExportError
from qwen_gguf import vocabulary, weights
from qwen_gguf.source import Source
from qwen_gguf.weights import CONFIG, WEIGHTS, factor_names

MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def load_base(source: Source, tokens: Path) -> Qwen2ForCausalLM:
    """The network in bfloat16, with the vocabulary that is served.

    Args:
        source: the published file.
        tokens: folder that was made of it, with the tokenizer and the configuration.

    Raises:
        ExportError: the folder has another vocabulary.
    """
    rows = vocabulary.choose(source.vocabulary(), english=True).rows
    config = Qwen2Config.from_pretrained(tokens, attn_implementation="sdpa")
    if config.vocab_size != len(rows):
        raise ExportError(f"{tokens} has another vocabulary")
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    read = {name: tensor.to(torch.bfloat16) for name, tensor in weights.tensors(source, rows)}
    model.load_state_dict(read, assign=True)
    # The rotation table is no weight: it is computed, and on the device "meta" it was not.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


class AdaptedLinear(nn.Module):
    """A frozen matrix, and what is added to it: ``W x + scale B A x``."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base = base
        self.scale = scale
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """As the matrix alone: ``[..., in]`` to ``[..., out]``."""
        added = functional.linear(
            functional.linear(x, self.down.to(x.dtype)), (self.up * self.scale).to(x.dtype)
        )
        return self.base(x) + added


def adapt(model: nn.Module, first_layer: int, rank: int, alpha: int) -> dict[str, AdaptedLinear]:
    """Freeze a model, and add an adapter to the matrices of its layers from ``first_layer`` on.

    Returns:
        The adapters by the names of their matrices.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    adapters = {}
    for name, module in list(model.named_modules()):
        parts = name.split(".")
        if parts[-1] not in MATRICES or int(parts[parts.index("layers") + 1]) < first_layer:
            continue
        adapters[name] = AdaptedLinear(module, rank, alpha / rank)
        setattr(model.get_submodule(name.rpartition(".")[0]), parts[-1], adapters[name])
    return adapters


def parameters(adapters: dict[str, AdaptedLinear]) -> Iterator[nn.Parameter]:
    """What is trained."""
    for adapter in adapters.values():
        yield adapter.down
        yield adapter.up


def load(adapters: dict[str, AdaptedLinear], folder: Path) -> None:
    """Read what :func:`save` has written.

    Raises:
        ValueError: it is of other matrices, or of another rank.
    """
    tensors = load_file(folder / WEIGHTS)
    if len(tensors) != 2 * len(adapters):
        raise ValueError(f"{folder} has {len(tensors) // 2} matrices, not {len(adapters)}")
    with torch.no_grad():
        for name, adapter in adapters.items():
            for own, factor in zip((adapter.down, adapter.up), factor_names(name), strict=True):
                read = tensors.get(factor)
                if read is None or read.shape != own.shape:
                    raise ValueError(f"{folder} has no {factor} of this shape")
                own.copy_(read)


def save(adapters: dict[str, AdaptedLinear], folder: Path, base: str, layers: range) -> None:
    """Write ``adapter_model.safetensors`` in bfloat16 and ``adapter_config.json``.

    Args:
        adapters: by the names of their matrices.
        folder: to write into; made if it is not there.
        base: name of the model that they belong to.
        layers: those that have adapters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, adapter in adapters.items():
        for own, factor in zip((adapter.down, adapter.up), factor_names(name), strict=True):
            tensors[factor] = own.detach().to(torch.bfloat16).contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # as the other files
    any_adapter = next(iter(adapters.values()))
    rank = any_adapter.down.shape[0]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": round(any_adapter.scale * rank),
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(MATRICES),
        "layers_to_transform": list(layers),
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
