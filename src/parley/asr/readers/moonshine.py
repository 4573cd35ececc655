"""Moonshine: audio in without a front end, text with case and punctuation out, English."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.alignment import Timing
from parley.asr.readers.attention import (
    ATTENTION,
    AttentionModel,
    AttentionNetwork,
    EncodedAudio,
    GreedyRules,
    Prompt,
    TextLimits,
    Vocabulary,
)
from parley.asr.segmenter.segmentation import PER_MS
from parley.errors import ModelLoadingError
from parley.runtime.onnx import Stop
from parley.runtime.ort_file import ORT_SUFFIX, OrtFile

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
HEADS: Mapping[int, Sequence[tuple[int, int]]] = {6: ((3, 7), (4, 7), (5, 6))}
"""Layers and heads that look where the next word is spoken, by the number of layers: of the model tiny, found
with sentences of Kokoro."""
TIMING = Timing(frame=384, per_ms=PER_MS, start_late=4, end_late=3)
_WEIGHTS = "/model/decoder/layers.{}/encoder_attn/Softmax_output_0"
"""The cross-attention of a layer, inside of the decoder's graph."""
_LIKE = "present.0.encoder.key"
"""An output of the same type."""
_LAYER_OUTPUT = ".decoder.key"
RULES = GreedyRules(end=END, tokens_per_s=10.0, fewest_tokens=4, most_tokens=194)


class MoonshineNetwork(AttentionNetwork):
    """The networks of ``encoder_model.ort`` and ``decoder_model_merged.ort``."""

    def encode(self, audio: NDArray[np.float32], stop: Stop) -> EncodedAudio:
        """See :meth:`AttentionNetwork.encode`."""
        mask = np.ones((1, len(audio)), np.int64)
        feed: dict[str, NDArray[Any]] = {"input_values": audio[None], "attention_mask": mask}
        # The decoder takes the mask of the audio, not of the vectors.
        return EncodedAudio(self.run_encoder(feed, stop), {"encoder_attention_mask": mask})


def load(files: Mapping[str, Path], open_network: Callable[..., Any]) -> AttentionModel:
    """Load a model; see :class:`parley.asr.readers.AttentionFamily`."""
    vocabulary = read_vocabulary(files["tokenizer"])
    decoder, part = files["decoder"], b""
    heads: Sequence[tuple[int, int]] = ()
    if decoder.suffix == ORT_SUFFIX:
        file = OrtFile(decoder.read_bytes())
        heads = HEADS.get(sum(name.endswith(_LAYER_OUTPUT) for name in file.outputs), ())
        names = {_WEIGHTS.format(layer): f"{ATTENTION}.{layer}" for layer, _ in heads}
        part = file.with_branch_outputs(names, like=_LIKE) if heads else b""
    network = MoonshineNetwork(
        open_network(files["encoder"]),
        open_network(decoder, part=part),
        tokens=len(vocabulary.pieces),
        heads=heads,
    )
    return AttentionModel(
        network,
        vocabulary,
        Prompt(START),
        RULES,
        SHORTEST,
        LONGEST,
        TextLimits(least_confidence=LEAST_CONFIDENCE),
        TIMING if heads else None,
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
