"""Moonshine's networks on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError, ModelLoadingError

Past: TypeAlias = dict[str, NDArray[np.float32]]
"""What the decoder remembers: keys and values of its layers by the name of the input."""
SHORTEST = 1_600
"""Samples that the encoder needs at least (100 ms)."""
_PAST, _PRESENT, _OWN = "past_key_values", "present", ".decoder."


@dataclass(frozen=True)
class EncodedAudio:
    """Encoded audio."""

    states: NDArray[np.float32]
    """f32 ``[1, T, D]``."""
    mask: NDArray[np.int64]
    """i64 ``[1, samples]``, all ones: the decoder wants the mask of the audio, not of the vectors."""


class Network(Protocol):
    """The two networks. A failure is raised as a :class:`parley.errors.InferenceError`."""

    def encode(self, audio: NDArray[np.float32]) -> EncodedAudio:
        """Hear audio: f32 ``[n]`` within ±1, 16 kHz, at least :data:`SHORTEST`."""
        ...

    def step(self, heard: EncodedAudio, token: int, past: Past | None) -> tuple[NDArray[np.float32], Past]:
        """Continue a text.

        Args:
            heard: what it is the text of.
            token: the last one.
            past: what the step before returned; None: this is the first.

        Returns:
            Raw scores of the next token, f32 ``[V]``, and what the next step needs.
        """
        ...


class OnnxNetwork:
    """:class:`Network` of two sessions, which any thread may use.

    Audio is heard one at a time: in a batch the quantised layers share their scales, so that a text would
    depend on the audio beside it, and a padded one be worse.
    """

    def __init__(self, encoder: Any, decoder: Any, *, tokens: int) -> None:
        """Use the sessions.

        Args:
            encoder: of ``encoder_model.ort``.
            decoder: of ``decoder_model_merged.ort``.
            tokens: size of the vocabulary.

        Raises:
            ModelLoadingError: they are none of Moonshine's, or do not go together.
        """
        self._encoder = encoder
        self._decoder = decoder
        shapes = {tensor.name: tensor.shape for tensor in decoder.get_inputs()}
        self._nothing = {
            name: np.zeros((0, shape[1], 1, shape[3]), np.float32)
            for name, shape in shapes.items()
            if name.startswith(_PAST)
        }
        self._outputs = [tensor.name for tensor in decoder.get_outputs()]
        after = {name.replace(_PRESENT, _PAST) for name in self._outputs if name.startswith(_PRESENT)}
        if not self._nothing or set(self._nothing) != after:
            raise ModelLoadingError("the decoder has other keys and values going in than coming out")
        width = decoder.get_outputs()[self._outputs.index("logits")].shape[-1]
        if width != tokens:
            raise ModelLoadingError(f"the decoder knows {width} tokens; the vocabulary has {tokens}")

    def encode(self, audio: NDArray[np.float32]) -> EncodedAudio:
        """See :meth:`Network.encode`."""
        mask = np.ones((1, len(audio)), np.int64)
        feed = {"input_values": audio[None], "attention_mask": mask}
        try:
            (states,) = self._encoder.run(None, feed)
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            raise InferenceError(f"the encoder failed on {len(audio)} samples: {error}") from error
        if not np.isfinite(states).all():
            raise InferenceError("the encoder's output is not finite")
        return EncodedAudio(states, mask)

    def step(self, heard: EncodedAudio, token: int, past: Past | None) -> tuple[NDArray[np.float32], Past]:
        """See :meth:`Network.step`."""
        feed = {
            **(past or self._nothing),
            "input_ids": np.array([[token]], np.int64),
            "encoder_hidden_states": heard.states,
            "encoder_attention_mask": heard.mask,
            "use_cache_branch": np.array([past is not None]),
        }
        try:
            outputs = dict(zip(self._outputs, self._decoder.run(None, feed), strict=True))
        except Exception as error:  # as above
            raise InferenceError(f"the decoder failed: {error}") from error
        logits = outputs.pop("logits")[0, -1]
        new = {name.replace(_PRESENT, _PAST): values for name, values in outputs.items()}
        # Only the first step computes what comes from the audio; later ones return nothing in its place.
        return logits, new if past is None else past | {name: new[name] for name in new if _OWN in name}


DEFAULT = "moonshine-tiny-en"
ENCODER, DECODER, TOKENIZER = "encoder_model.ort", "decoder_model_merged.ort", "tokenizer.bin"
FILES = (ENCODER, DECODER, TOKENIZER)
START, END = 1, 2
"""Ids of the tokens before and after a text; no id up to ``END`` is a part of it."""
_WORD_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
_LONG = 128
"""Lengths from here on take two bytes, the lower one first."""


@dataclass(frozen=True)
class Vocabulary:
    """What the tokens stand for."""

    pieces: tuple[bytes, ...]
    """By id. A piece may be a part of a character."""

    @property
    def spelled(self) -> tuple[str, ...]:
        """The pieces as text, with ``▁`` before a word; those that are no text by themselves are empty."""
        return tuple(
            "" if number <= END else _decoded(piece) or "" for number, piece in enumerate(self.pieces)
        )

    def text(self, ids: Iterable[int]) -> str:
        """What tokens say, with single spaces; bytes that are no character are left out."""
        raw = b"".join(self.pieces[token] for token in ids if token > END)
        return " ".join(raw.decode(errors="ignore").replace(_WORD_MARK, " ").split())


def read_vocabulary(file: Path) -> Vocabulary:
    """Read ``tokenizer.bin``.

    Raises:
        ModelLoadingError: it is not one.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ModelLoadingError(f"{file} cannot be read: {error}") from error
    pieces: list[bytes] = []
    at = 0
    try:
        while at < len(content):
            length, at = content[at], at + 1
            if length >= _LONG:
                length, at = length - _LONG + _LONG * content[at], at + 1
            if at + length > len(content):
                raise IndexError  # noqa: TRY301 - the file ends within a piece, as it may within a length
            pieces.append(content[at : at + length])
            at += length
    except IndexError:
        raise ModelLoadingError(f"{file} ends within token {len(pieces)}") from None
    if len(pieces) <= END + 1:
        raise ModelLoadingError(f"{file} has {len(pieces)} tokens, and so no text")
    return Vocabulary(tuple(pieces))


def _decoded(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None
