"""A Qwen2 model in a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from comparison import ExportError

ARCHITECTURE = "qwen2"
_TOKENIZER = ("gpt2", "qwen2")
"""Byte-level BPE, and Qwen2's way to cut text into words before it."""
_SPECIAL = 3
"""Of ``tokenizer.ggml.token_type``: no text but a mark, such as the end of a message."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the network."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    context: int
    rope_theta: float
    epsilon: float


@dataclass(frozen=True)
class Vocabulary:
    """What the ids of tokens mean."""

    tokens: list[str]
    """By id, in the alphabet of byte-level BPE; without those that only fill the table up."""
    merges: list[tuple[str, str]]
    """Most important first."""
    special: dict[str, int]
    """Marks and their ids: they follow the tokens of text."""

    @property
    def text_tokens(self) -> list[str]:
        """Those that are text."""
        return self.tokens[: min(self.special.values())]


class Source:
    """The opened file; tensors are read one by one.

    Raises:
        ExportError: it is not a GGUF file of a Qwen2 model.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ExportError(f"{path} is not a GGUF file, or not all of one: {error}") from error
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        architecture = self._value("general.architecture")
        if architecture != ARCHITECTURE:
            raise ExportError(f"{path} has the architecture {architecture!r}, not {ARCHITECTURE!r}")
        tokenizer = (self._value("tokenizer.ggml.model"), self._value("tokenizer.ggml.pre"))
        if tokenizer != _TOKENIZER:
            raise ExportError(f"{path} has the tokenizer {tokenizer}, not {_TOKENIZER}")

    def shape(self) -> Shape:
        """Sizes of the network."""
        number = {
            name: self._value(f"{ARCHITECTURE}.{key}")
            for name, key in {
                "layers": "block_count",
                "hidden": "embedding_length",
                "feed_forward": "feed_forward_length",
                "heads": "attention.head_count",
                "kv_heads": "attention.head_count_kv",
                "context": "context_length",
                "rope_theta": "rope.freq_base",
                "epsilon": "attention.layer_norm_rms_epsilon",
            }.items()
        }
        return Shape(**number)

    def vocabulary(self) -> Vocabulary:
        """Tokens and merges."""
        tokens: list[str] = self._value("tokenizer.ggml.tokens")
        kinds: list[int] = self._value("tokenizer.ggml.token_type")
        merges = [tuple(merge.split(" ")) for merge in self._value("tokenizer.ggml.merges")]
        special = {token: index for index, token in enumerate(tokens) if kinds[index] == _SPECIAL}
        if not special or any(len(merge) != 2 for merge in merges):
            raise ExportError(f"{self._path} has a vocabulary that is not Qwen2's")
        return Vocabulary(tokens[: max(special.values()) + 1], merges, special)

    def chat_template(self) -> str:
        """In Jinja."""
        return str(self._value("tokenizer.chat_template"))

    def has(self, name: str) -> bool:
        """Whether there is this tensor."""
        return name in self._tensors

    def tensor(self, name: str, rows: Sequence[int] | None = None) -> NDArray[np.float32]:
        """One tensor, of the shape that PyTorch's modules have.

        Args:
            name: of the tensor.
            rows: the ones that are wanted, in this order; None: all.
        """
        try:
            tensor = self._tensors[name]
            data = tensor.data if rows is None else tensor.data[np.asarray(rows)]
            return np.array(dequantize(data, tensor.tensor_type), np.float32)
        except KeyError:
            raise ExportError(f"{self._path} has no tensor {name}") from None
        except (IndexError, NotImplementedError) as error:
            raise ExportError(f"{name} of {self._path} cannot be read: {error}") from error

    def _value(self, key: str) -> Any:
        field = self._reader.get_field(key)
        if field is None:
            raise ExportError(f"{self._path} does not say {key}")
        return field.contents()
