"""NeMo's CTC models as sherpa-onnx packs them: Citrinet, Conformer, FastConformer, Parakeet's CTC branch.

Features are NeMo's own, as the models were trained with them, and not Kaldi's with similar settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import ParakeetConfig
from parley.asr.features.log_mel import LogMel
from parley.asr.frames.ctc import decode_frames
from parley.asr.frames.model import FrameModel, RowTokens, RunResult
from parley.asr.frames.network import OnnxNetwork, pad_rows
from parley.asr.frames.tokens import find_blank, read_symbols, to_vocabulary
from parley.asr.segments.reader import ReadOptions
from parley.errors import ModelLoadingError
from parley.runtime.onnx import Stop

FILES = {"model": "model.onnx", "tokens": "tokens.txt"}
LANGUAGES = ("en",)
MODEL_TYPES = ("EncDecCTCModel", "EncDecCTCModelBPE", "EncDecHybridRNNTCTCBPEModel")
_BANDS = 80


class NemoCtcNetwork:
    """:class:`parley.asr.frames.model.FrameNetwork`: features of all bands in, a score for each token out.

    Args:
        network: the session.
        blank: class of the blank.
        tokens: size of the vocabulary, the blank included.
        subsampling: feature frames of a frame of scores.
    """

    def __init__(self, network: OnnxNetwork, *, blank: int, tokens: int, subsampling: int) -> None:
        self.most_rows = network.most_rows
        self._network = network
        self._blank = blank
        self._tokens = tokens
        self._subsampling = subsampling

    def run(
        self, features: Sequence[NDArray[np.float32]], options: Sequence[ReadOptions], stop: Stop
    ) -> RunResult:
        """See :class:`parley.asr.frames.model.FrameNetwork`."""
        began = time.perf_counter()
        padded, lengths = pad_rows(features, 0.0)
        (scores,) = self._network.run(stop, np.ascontiguousarray(padded.transpose(0, 2, 1)), lengths)[:1]
        ran = time.perf_counter()
        frames = -(-lengths // self._subsampling)
        rows = [
            RowTokens(decode_frames(row[:length], self._blank, own.boosting, tokens=self._tokens))
            for row, length, own in zip(scores, frames.tolist(), options, strict=True)
        ]
        return RunResult.timed(rows, began, ran)


def load(
    files: Mapping[str, Path], open_network: Callable[[Path], Any], languages: tuple[str, ...]
) -> FrameModel:
    """Load a model; see :class:`parley.asr.families.Family`."""
    symbols = read_symbols(files["tokens"])
    network = OnnxNetwork(open_network(files["model"]), files["model"].name, inputs=2, outputs=1)
    metadata = network.metadata()
    kind = metadata.text("model_type")
    if kind not in MODEL_TYPES or metadata.integer("is_giga_am", "0"):
        raise ModelLoadingError(
            f"{files['model']} is of the type {kind}{', of GigaAM' if kind in MODEL_TYPES else ''}; "
            f"the family nemo_ctc has {', '.join(MODEL_TYPES)}"
        )
    normalize = metadata.text("normalize_type") or "NA"
    if normalize not in ("per_feature", "NA"):
        raise ModelLoadingError(f"{files['model']} normalises features by {normalize}, which is not known")
    bands = network.inputs[0].shape[1]
    if not isinstance(bands, int):
        bands = metadata.integer("feat_dim", str(_BANDS), minimum=1)
    network.check_input(0, 1, bands, "features")
    network.check_width(0, 2, len(symbols), "tokens")
    subsampling = metadata.integer("subsampling_factor", minimum=1)
    if metadata.integer("vocab_size", minimum=1) not in (len(symbols), len(symbols) - 1):
        raise ModelLoadingError(
            f"{files['model']} has {metadata.text('vocab_size')} tokens, and {files['tokens']} {len(symbols)}"
        )
    config = ParakeetConfig(
        features_size=bands,
        subsampling_factor=subsampling,
        normalize="per_feature" if normalize == "per_feature" else "NA",
    )
    mel = LogMel(config)
    return FrameModel(
        lambda audio: np.ascontiguousarray(mel.normalized(mel.offline(audio)).T),
        NemoCtcNetwork(network, blank=find_blank(symbols), tokens=len(symbols), subsampling=subsampling),
        to_vocabulary(symbols),
        config.frame_ms,
        languages,
    )
