"""Moonshine: audio in without a front end, text with case and punctuation out, English."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr.readers.attention import (
    AttentionModel,
    AttentionNetwork,
    EncodedAudio,
    GreedyRules,
    Prompt,
    TextLimits,
    Vocabulary,
)
from parley.errors import ModelLoadingError
from parley.runtime.onnx import Stop

FILES = {
    "encoder": "encoder_model.ort",
    "decoder": "decoder_model_merged.ort",
    "tokenizer": "tokenizer.bin",
}
SHORTEST = 1_600
"""Samples that the encoder needs at least (100 ms)."""
LONGEST = 30 * 16_000
START, END = 1, 2
"""Ids of the tokens before and after a text; no id up to ``END`` is a part of it."""
_LONG = 128
"""Lengths from here on take two bytes, the lower one first."""
LEAST_CONFIDENCE = 0.45
"""Of silence and noise the networks make "You" and the like, of which they are less sure."""
RULES = GreedyRules(end=END, tokens_per_s=10.0, fewest_tokens=4, most_tokens=194)


class MoonshineNetwork(AttentionNetwork):
    """The networks of ``encoder_model.ort`` and ``decoder_model_merged.ort``."""

    def encode(self, audio: NDArray[np.float32], stop: Stop) -> EncodedAudio:
        """See :meth:`AttentionNetwork.encode`."""
        mask = np.ones((1, len(audio)), np.int64)
        feed: dict[str, NDArray[Any]] = {"input_values": audio[None], "attention_mask": mask}
        # The decoder takes the mask of the audio, not of the vectors.
        return EncodedAudio(self.run_encoder(feed, stop), {"encoder_attention_mask": mask})


def load(files: Mapping[str, Path], open_network: Callable[[Path], Any]) -> AttentionModel:
    """Load a model; see :class:`parley.asr.readers.AttentionFamily`."""
    vocabulary = read_vocabulary(files["tokenizer"])
    network = MoonshineNetwork(
        open_network(files["encoder"]), open_network(files["decoder"]), tokens=len(vocabulary.pieces)
    )
    return AttentionModel(
        network,
        vocabulary,
        Prompt(START),
        RULES,
        SHORTEST,
        LONGEST,
        TextLimits(least_confidence=LEAST_CONFIDENCE),
    )


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
    return Vocabulary(tuple(pieces), frozenset(range(END + 1)))
