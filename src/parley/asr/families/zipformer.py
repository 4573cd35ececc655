"""Icefall's models as sherpa-onnx packs them: Zipformers with a CTC head or as a stateless transducer.

Other encoders of icefall (Conformer, Emformer without streaming) have the same files, inputs and outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.greedy import Tokens, TransducerDecoder
from parley.asr.frames.ctc import decode_frames
from parley.asr.frames.model import FrameModel, RowTokens, RunResult
from parley.asr.frames.network import OnnxNetwork, pad_rows
from parley.asr.frames.stateless import BLANK, StatelessJoint, shifted
from parley.asr.frames.tokens import BLANKS, find_blank, read_symbols, to_vocabulary
from parley.asr.segments.reader import ReadOptions
from parley.audio.fbank import FbankOptions, KaldiFbank
from parley.errors import ModelLoadingError
from parley.runtime.onnx import Stop

CTC_FILES = {"model": "model.onnx", "tokens": "tokens.txt"}
TRANSDUCER_FILES = {
    "encoder": "encoder.onnx",
    "decoder": "decoder.onnx",
    "joiner": "joiner.onnx",
    "tokens": "tokens.txt",
}
LANGUAGES = ("en",)
CTC_TYPE = "zipformer2_ctc"
SUBSAMPLING = 4
"""Feature frames of an encoder frame."""
FRAME_MS = 40
BANDS = 80
_HIGHEST_HZ = 7_600.0
_SILENCE = -23.025850929940457
"""The logarithm of the energy that icefall puts behind shorter rows."""
_UNKNOWN = "<unk>"


class ZipformerCtcNetwork:
    """:class:`parley.asr.frames.model.FrameNetwork` of a CTC head.

    Args:
        network: the session.
        blank: class of the blank.
        tokens: size of the vocabulary, the blank included.
    """

    def __init__(self, network: OnnxNetwork, *, blank: int, tokens: int) -> None:
        self.most_rows = network.most_rows
        self._network = network
        self._blank = blank
        self._tokens = tokens

    def run(
        self, features: Sequence[NDArray[np.float32]], options: Sequence[ReadOptions], stop: Stop
    ) -> RunResult:
        """See :class:`parley.asr.frames.model.FrameNetwork`."""
        began = time.perf_counter()
        scores, frames = self._network.run(stop, *pad_rows(features, _SILENCE))[:2]
        ran = time.perf_counter()
        rows = [
            RowTokens(decode_frames(row[:length], self._blank, own.boosting, tokens=self._tokens))
            for row, length, own in zip(scores, frames.tolist(), options, strict=True)
        ]
        return RunResult.timed(rows, began, ran)


class ZipformerTransducer:
    """:class:`parley.asr.frames.model.FrameNetwork` of an encoder, a stateless decoder and a joiner.

    Args:
        encoder: the session.
        joint: decoder and joiner.
        tokens: size of the vocabulary, the blank included.
    """

    def __init__(self, encoder: OnnxNetwork, joint: StatelessJoint, *, tokens: int) -> None:
        self.most_rows = encoder.most_rows
        self._encoder = encoder
        self._joint = joint
        self._tokens = tokens

    def run(
        self, features: Sequence[NDArray[np.float32]], options: Sequence[ReadOptions], stop: Stop
    ) -> RunResult:
        """See :class:`parley.asr.frames.model.FrameNetwork`."""
        began = time.perf_counter()
        encoded, frames = self._encoder.run(stop, *pad_rows(features, _SILENCE))[:2]
        ran = time.perf_counter()
        phrases = [shifted(own.boosting) for own in options]
        # Icefall trains its transducers with one token at a frame at most.
        decoder = TransducerDecoder(
            self._joint.stopped_by(stop), blank=self._tokens - 1, durations=(), max_symbols=1
        )
        found, _ = decoder.decode(
            encoded.transpose(0, 2, 1),
            frames.astype(np.int64),
            decoder.initial_state(len(features)),
            phrases if any(len(own.bonus) for own in phrases) else None,
        )
        rows = [
            RowTokens(Tokens(own.ids + BLANK + 1, own.frames, np.ones_like(own.frames), own.confidences))
            for own in found
        ]
        return RunResult.timed(rows, began, ran)


def load_ctc(
    files: Mapping[str, Path], open_network: Callable[[Path], Any], languages: tuple[str, ...]
) -> FrameModel:
    """Load a model with a CTC head; see :class:`parley.asr.families.Family`."""
    symbols = read_symbols(files["tokens"])
    network = OnnxNetwork(open_network(files["model"]), files["model"].name, inputs=2, outputs=2)
    kind = network.metadata().text("model_type")
    if kind != CTC_TYPE:
        raise ModelLoadingError(
            f"{files['model']} is of the type {kind}; the family zipformer_ctc has {CTC_TYPE}"
        )
    network.check_input(0, 2, BANDS, "features")
    network.check_width(0, 2, len(symbols), "tokens")
    ctc = ZipformerCtcNetwork(network, blank=find_blank(symbols), tokens=len(symbols))
    return _model(ctc, symbols, languages)


def load_transducer(
    files: Mapping[str, Path], open_network: Callable[[Path], Any], languages: tuple[str, ...]
) -> FrameModel:
    """Load a transducer; see :class:`parley.asr.families.Family`."""
    symbols = read_symbols(files["tokens"])
    if symbols[BLANK] not in BLANKS:
        raise ModelLoadingError(
            f"{files['tokens']} begins with {symbols[BLANK]!r}, and not with the blank: {', '.join(BLANKS)}"
        )
    encoder, decoder, joiner = (
        OnnxNetwork(open_network(files[role]), files[role].name, inputs=inputs, outputs=outputs)
        for role, inputs, outputs in (("encoder", 2, 2), ("decoder", 1, 1), ("joiner", 2, 1))
    )
    metadata = decoder.metadata()
    context, size = metadata.integer("context_size", minimum=1), metadata.integer("vocab_size", minimum=1)
    if size != len(symbols):
        raise ModelLoadingError(f"{files['decoder']} has {size} tokens, and {files['tokens']} {len(symbols)}")
    encoder.check_input(0, 2, BANDS, "features")
    decoder.check_input(0, 1, context, "tokens")
    joiner.check_width(0, 1, size, "tokens")
    unknown = symbols.index(_UNKNOWN) if _UNKNOWN in symbols else None
    joint = StatelessJoint(decoder, joiner, context=context, tokens=size, unknown=unknown)
    return _model(ZipformerTransducer(encoder, joint, tokens=size), symbols, languages)


def _model(
    network: ZipformerCtcNetwork | ZipformerTransducer, symbols: tuple[str, ...], languages: tuple[str, ...]
) -> FrameModel:
    options = FbankOptions(BANDS, highest_hz=_HIGHEST_HZ, whole_frames=False)
    return FrameModel(KaldiFbank(options).compute, network, to_vocabulary(symbols), FRAME_MS, languages)
