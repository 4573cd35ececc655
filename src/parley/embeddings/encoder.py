"""Sentence encoders in folders as the library sentence-transformers writes them, on ONNX Runtime."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from parley.embeddings.bert import IDS, LENGTHS, POSITIONS, BertConfig
from parley.embeddings.files import CONFIG_FILE, FILES, LIMITS_FILE, POOLING_FILE, TOKENIZER_FILE
from parley.embeddings.messages import EmbeddingSpace, TextKind
from parley.errors import InferenceError, InvalidInputError, ModelLoadingError

MAX_BYTES = 32 << 10
"""Of a text."""
StructT = TypeVar("StructT", bound=msgspec.Struct)


class _Limits(msgspec.Struct, frozen=True):
    max_seq_length: int


class _Pooling(msgspec.Struct, frozen=True):
    pooling_mode_mean_tokens: bool = False
    pooling_mode_cls_token: bool = False


@dataclass(frozen=True)
class TokenizedText:
    """A text as the network reads it."""

    ids: Sequence[int]
    is_truncated: bool


class SentenceFolder:
    """What the files of a folder beside the network say.

    Args:
        folder: has :data:`parley.embeddings.files.FILES`.
        prefixes: what is written before a text of each kind, as the network's publisher says.

    Attributes:
        config: of the network.
        space: of its vectors.

    Raises:
        ModelLoadingError: a file cannot be used, or the network is of a kind that is not supported.
    """

    def __init__(self, folder: Path, prefixes: Mapping[TextKind, str]) -> None:
        self.config = _read(folder / CONFIG_FILE, BertConfig)
        pooling = _read(folder / POOLING_FILE, _Pooling)
        self.takes_mean = pooling.pooling_mode_mean_tokens
        if self.takes_mean == pooling.pooling_mode_cls_token:
            raise ModelLoadingError(f"{folder / POOLING_FILE} must choose the mean or the first token")
        limit = min(_read(folder / LIMITS_FILE, _Limits).max_seq_length, self.config.max_position_embeddings)
        digest = hashlib.sha256(repr(sorted(prefixes.items())).encode())
        for name in FILES:
            with (folder / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        self.space = EmbeddingSpace(
            fingerprint=digest.hexdigest(), dimensions=self.config.hidden_size, max_tokens=limit
        )
        self._prefixes = prefixes
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        except Exception as error:  # the package's own exceptions have no other base class
            raise ModelLoadingError(f"{folder / TOKENIZER_FILE} cannot be used: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(limit)

    def tokenize(self, text: bytes, kind: TextKind) -> TokenizedText:
        """The tokens of a text. Not for two threads at once.

        Raises:
            InvalidInputError: it is not UTF-8, too long, or has nothing that is represented.
        """
        if len(text) > MAX_BYTES:
            raise InvalidInputError(f"a text has {len(text)} bytes; it must have at most {MAX_BYTES}")
        try:
            words = text.decode()
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"a text is not UTF-8: {error.reason}") from error
        found = self._tokenizer.encode(self._prefixes[kind] + words)
        is_blank = not any(character.isprintable() and character != " " for character in words)
        if is_blank or all(found.special_tokens_mask):
            raise InvalidInputError("a text has nothing but blanks and control characters")
        return TokenizedText(found.ids, bool(found.overflowing))


class TextEncoder:
    """Computes the vectors of texts; remembers nothing of them.

    Args:
        session: of the graph of :func:`parley.embeddings.bert.make_graph`.
        takes_mean: whether a vector is the mean of its text's tokens; otherwise it is the first one.
        run_tokens: of one run of the network, padding included.
    """

    def __init__(self, session: Any, *, takes_mean: bool, run_tokens: int) -> None:
        self._session = session
        self._takes_mean = takes_mean
        self._run_tokens = run_tokens

    def count_together(self, texts: Sequence[TokenizedText]) -> int:
        """How many of the first texts fit into one run; at least one."""
        longest = 0
        for index, text in enumerate(texts):
            longest = max(longest, len(text.ids))
            if index and longest * (index + 1) > self._run_tokens:
                return index
        return len(texts)

    def encode(self, texts: Sequence[TokenizedText]) -> NDArray[np.float32]:
        """The vectors: f32 ``[len(texts), dimensions]``, each of length 1, in as few runs as have room.

        Raises:
            InferenceError: the network failed, or gave values that are not finite.
        """
        vectors: list[NDArray[np.float32]] = []
        while len(vectors) < len(texts):
            left = texts[len(vectors) :]
            vectors += [*self._run(left[: self.count_together(left)])]
        return np.array(vectors, np.float32)

    def _run(self, texts: Sequence[TokenizedText]) -> NDArray[np.float32]:
        lengths = np.array([len(text.ids) for text in texts], np.int64)
        ids = np.zeros((len(texts), lengths.max()), np.int64)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text.ids)] = text.ids
        positions = np.arange(ids.shape[1])
        try:
            (hidden,) = self._session.run(None, {IDS: ids, POSITIONS: positions, LENGTHS: lengths})
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            raise InferenceError(f"the network failed: {error}") from error
        states = hidden.reshape(*ids.shape, -1)
        count = lengths if self._takes_mean else np.ones_like(lengths)
        # A sum: its length does not matter, nor do values behind the text's end, of whatever kind.
        sums = np.where((positions < count[:, None])[..., None], states, 0).sum(1)
        vectors: NDArray[np.float32] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        if not np.isfinite(vectors).all():
            raise InferenceError("the network's vectors are not finite")
        return vectors


def _read(path: Path, kind: type[StructT]) -> StructT:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError) as error:  # of msgspec too
        raise ModelLoadingError(f"{path} cannot be used: {error}") from error
