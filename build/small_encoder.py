"""A small sentence encoder of random numbers that tells texts by their words."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase, digits, punctuation
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from parley.embeddings.files import CONFIG_FILE, LIMITS_FILE, POOLING_FILE, TOKENIZER_FILE, WEIGHTS_FILE

Array: TypeAlias = NDArray[np.float32]
_SIZE, _INNER, _LAYERS, _HEADS, _TOKENS, _WORDS = 64, 128, 2, 2, 256, 6000
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def write(folder: Path, sources: Sequence[Path], seed: int = 0) -> None:
    """Write the files into a folder.

    Args:
        folder: for the files.
        sources: texts whose most frequent words are tokens; other words are letters.
        seed: of the numbers.
    """
    texts = "\n".join(path.read_text(encoding="utf-8").lower() for path in sources)
    counts = Counter(re.findall("[a-z]{2,}", texts))
    words = sorted(counts, key=lambda word: (-counts[word], word))[:_WORDS]
    characters = (*ascii_lowercase, *digits, *punctuation)
    tokens = (*_SPECIAL, *characters, *(f"##{one}" for one in characters), *words)
    numbers = np.random.default_rng(seed)

    def random(*shape: int, scale: float = 0.02) -> Array:
        return (numbers.standard_normal(shape) * scale).astype(np.float32)

    def norm(name: str) -> dict[str, Array]:
        return {f"{name}.weight": np.ones(_SIZE, np.float32), f"{name}.bias": np.zeros(_SIZE, np.float32)}

    embeddings = {"word": random(len(tokens), _SIZE, scale=1), "position": random(_TOKENS, _SIZE)}
    tensors = {f"embeddings.{name}_embeddings.weight": values for name, values in embeddings.items()}
    tensors |= {"embeddings.token_type_embeddings.weight": random(2, _SIZE), **norm("embeddings.LayerNorm")}
    sizes = {f"attention.self.{name}": (_SIZE, _SIZE) for name in ("query", "key", "value")}
    sizes |= {"attention.output.dense": (_SIZE, _SIZE)}
    sizes |= {"intermediate.dense": (_INNER, _SIZE), "output.dense": (_SIZE, _INNER)}
    for prefix in (f"encoder.layer.{layer}." for layer in range(_LAYERS)):
        for name, shape in sizes.items():
            tensors |= {f"{prefix}{name}.weight": random(*shape), f"{prefix}{name}.bias": random(shape[0])}
        tensors |= norm(f"{prefix}attention.output.LayerNorm") | norm(f"{prefix}output.LayerNorm")
    (folder / POOLING_FILE).parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).chmod(0o644)
    config = {"model_type": "bert", "hidden_act": "gelu", "hidden_size": _SIZE, "layer_norm_eps": 1e-12}
    config |= {
        "num_attention_heads": _HEADS,
        "num_hidden_layers": _LAYERS,
        "max_position_embeddings": _TOKENS,
    }
    config |= {"intermediate_size": _INNER, "vocab_size": len(tokens), "type_vocab_size": 2}
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    (folder / LIMITS_FILE).write_text(json.dumps({"max_seq_length": _TOKENS}) + "\n")
    (folder / POOLING_FILE).write_text(json.dumps({"pooling_mode_mean_tokens": True}) + "\n")
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=_SPECIAL[1]))
    tokenizer.add_special_tokens([*_SPECIAL])
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    tokenizer.save(str(folder / TOKENIZER_FILE))
